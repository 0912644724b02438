"""Servers and stores that tests share: always the real ones."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from memory_tasks import RedisWorkingStore, Scope, Settings, SQLiteStore, Turn
from memory_tasks.connection import connect
from memory_tasks.embedders.wordllama import WordLlamaEmbedder
from memory_tasks.models import now
from workers.valkey import EmbeddedValkey


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedValkey]:
    """A Valkey server for the whole session."""
    with EmbeddedValkey(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture
def client(valkey: EmbeddedValkey) -> Iterator[redis.Redis]:
    client = connect(valkey.url)
    yield client
    client.close()


@pytest.fixture
def prefix() -> str:
    """A key prefix that no other test uses."""
    return f"test-{uuid.uuid4().hex}"


@pytest.fixture
def settings(valkey: EmbeddedValkey, prefix: str, tmp_path: Path) -> Settings:
    return Settings.load(redis_url=valkey.url, prefix=prefix, long_term_url=f"sqlite:///{tmp_path / 'memory.db'}")


@pytest.fixture
def working(client: redis.Redis, prefix: str) -> RedisWorkingStore:
    return RedisWorkingStore(client, prefix=prefix)


@pytest.fixture
def store(tmp_path: Path) -> SQLiteStore:
    return SQLiteStore(tmp_path / "memory.db", WordLlamaEmbedder())


@pytest.fixture
def scope() -> Scope:
    return Scope(user_id="ann", conversation_id="c1")


def make_turn(turn_id: str, user: str = "hello", assistant: str = "hi", **fields: Any) -> Turn:
    """A turn with defaults for what a test does not care about."""
    fields.setdefault("created_at", now())
    return Turn(turn_id=turn_id, user_message=user, assistant_message=assistant, **fields)
