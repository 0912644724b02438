"""Writes what every stored format looks like today: `python -m tests.formats`. Later versions must still read it."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from memory_tasks import Completion, Memory, Recall, RedisWorkingStore, ReplyRequest, Scope, Settings, SQLiteStore, Turn
from memory_tasks.connection import connect
from memory_tasks.ledger import Ledger, make_reply
from memory_tasks.sealing import Sealer
from memory_tasks.stores.conformance import WordsEmbedder
from memory_tasks.stores.pgvector import PgVectorStore
from memory_tasks.stores.postgres import SCHEMA
from memory_tasks.stores.records import FORMAT
from memory_tasks.stores.working_redis import Promotion
from memory_tasks.transfer import export_lines
from tests.postgres import new_database, running_postgres
from workers.valkey import EmbeddedValkey

FIXTURES = Path(__file__).parent / "fixtures"
KEY = "tNFRJVg0vBAFPq1ElEDW7Q5oFAQTkYnUw0X7FZBx_WQ="
"""Of the encrypted store; a fixture is no secret."""
SCOPE = Scope(user_id="ann", conversation_id="c1")
PREFIX = "format"


def turn(number: int) -> Turn:
    said = datetime(2024, 5, number, 12, tzinfo=UTC)
    return Turn(
        turn_id=f"t{number}", user_message=f"I drink tea number {number}", assistant_message="noted", created_at=said,
        importance=0.5, remember=number == 2,
    )  # fmt: skip


def memories() -> list[Memory]:
    return [Memory(scope=SCOPE, turn=turn(number)) for number in (1, 2, 3)]


def write(folder: Path) -> None:
    """All fixtures of the present format."""
    folder.mkdir(parents=True)
    for name, sealer in (("plain", Sealer()), ("sealed", Sealer([KEY]))):
        store = SQLiteStore(folder / f"{name}.db", WordsEmbedder(), sealer)
        store.upsert(memories())
        with store._write() as db:
            db.execute("select 1")
        store._scrub()
        store.close()
    with tempfile.TemporaryDirectory() as scratch:
        with EmbeddedValkey(Path(scratch) / "valkey") as valkey:
            working = _redis_states(valkey.url)
            (folder / "redis.json").write_text(json.dumps(dict(_everything(valkey.url)), indent=1) + "\n")
            plain = SQLiteStore(folder / "plain.db", WordsEmbedder())
            lines = list(export_lines(working, plain, [SCOPE], None, SCOPE))
            plain.close()
        (folder / "turns.jsonl").write_text("\n".join(lines) + "\n")
        with running_postgres(Path(scratch) / "postgres") as server:
            (folder / "pgvector.sql").write_text("\n".join(_tables(new_database(server))) + "\n")


def _redis_states(url: str) -> RedisWorkingStore:
    """A conversation with a turn in each state that a running system leaves behind."""
    client = connect(url)
    settings = Settings.load(redis_url=url, prefix=PREFIX)
    ledger = Ledger(client, settings)
    working = RedisWorkingStore(client, prefix=PREFIX, promotion=Promotion())

    def accept(turn_id: str, conversation: str) -> Any:
        scope = Scope(user_id="ann", conversation_id=conversation)
        request = ReplyRequest(scope=scope, message=f"message of {turn_id}", turn_id=turn_id)
        return request, ledger.accept(request, {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}).ref

    working.append(SCOPE, turn(4))
    for turn_id in ("active", "waiting"):
        accept(turn_id, "c1")
    for turn_id in ("recalled", "answered", "dead"):
        request, ref = accept(turn_id, turn_id)
        ledger.begin(ref, "recall")
        ledger.recalled(ref, Recall(recent=[turn(1)]))
        if turn_id == "answered":
            ledger.begin(ref, "complete", "token")
            ledger.chunk(ref, "token", "paid ", 1)
            ledger.completed(ref, make_reply(request, Recall(), Completion(text="paid answer", model="m")))
        elif turn_id == "dead":
            ledger.begin(ref, "complete", "token")
            ledger.retry(ref, "complete", "CompletionError", delay=1, max_attempts=1, token="token")
    return working


def _everything(url: str) -> Iterator[tuple[str, Any]]:
    client: Any = connect(url)
    read = {
        "string": client.get, "hash": client.hgetall, "set": lambda key: sorted(client.smembers(key)),
        "list": lambda key: client.lrange(key, 0, -1), "zset": lambda key: client.zrange(key, 0, -1, withscores=True),
        "stream": lambda key: [fields for _, fields in client.xrange(key)],
    }  # fmt: skip
    for key in sorted(client.scan_iter("*")):
        kind = client.type(key)
        # JSON has no infinity.
        value = [[m, str(s)] for m, s in read[kind](key)] if kind == "zset" else read[kind](key)
        yield key, [kind, value]


def load_redis(url: str, stored: dict[str, Any]) -> None:
    """Put what `_everything` gave into an empty server."""
    client: Any = connect(url)
    for key, (kind, value) in stored.items():
        match kind:
            case "string":
                client.set(key, value)
            case "hash":
                client.hset(key, mapping=value)
            case "set":
                client.sadd(key, *value)
            case "list":
                client.rpush(key, *value)
            case "zset":
                client.zadd(key, {member: float(score) for member, score in value})
            case "stream":
                for fields in value:
                    client.xadd(key, fields)


def _tables(database: str) -> Iterator[str]:
    """The schema and the rows as statements."""
    store = PgVectorStore(database, WordsEmbedder(), partitions=1)
    store.upsert(memories())
    store.close()
    yield files("memory_tasks.stores").joinpath("pgvector.sql").read_text()
    yield f"alter table turns alter column vector type vector({WordsEmbedder().dimension});"
    with psycopg.connect(database) as db:
        db.execute(f"set search_path = {SCHEMA}, public")
        for table in ("scopes", "turns", "postings"):
            yield f"create table {table}_0 partition of {table} for values with (modulus 1, remainder 0);"
        for table in ("meta", "scopes", "turns", "postings"):
            for row in db.execute(f"select * from {table}").fetchall():
                values = sql.SQL(", ").join(map(sql.Literal, row)).as_string(db)
                yield f"insert into {table} values ({values});"
        yield "select setval('scope_numbers', 100);"


if __name__ == "__main__":
    target = FIXTURES / f"format-{FORMAT}"
    shutil.rmtree(target, ignore_errors=True)
    write(target)
