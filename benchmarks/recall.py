"""Which memory finds the turns that answer LoCoMo's questions: ours, Chroma, LangGraph's store and mem0, in one run.

All get the same texts, an exchange each, and the same vectors, made beforehand: times are the stores' own.
"""

import json
import os
import statistics
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psycopg

from benchmarks.locomo import Conversation, load, recall_at
from benchmarks.report import Report
from memory_tasks import Memory, Scope, SQLiteStore, Turn
from memory_tasks.embedders.wordllama import WordLlamaEmbedder
from memory_tasks.ports import Embedder, LongTermStore
from memory_tasks.stores.leann import LeannStore
from memory_tasks.stores.pgvector import PgVectorStore
from memory_tasks.stores.records import spoken
from tests.postgres import new_database, running_postgres
from workers.valkey import EmbeddedValkey

PEERS = Path(__file__).parent / "peers"
ENVIRONMENT = Path(os.environ.get("BENCH_PEERS", ".venv-peers"))
"""Where the peers are installed, once; it takes some minutes and 2 GB."""
DATA = Path(os.environ.get("BENCH_DATA", "locomo10.json"))
AIMS = {"SQLite, wordllama": (77.0, 83.0), "SQLite, MiniLM": (78.0, 84.0)}


@dataclass(frozen=True, slots=True)
class Measured:
    """What one memory did."""

    found: list[list[str]]
    """For each question, the ids."""
    search: list[float]
    """Seconds a question."""
    add: float
    """Seconds for all turns."""
    size: int
    """Bytes on disk."""


class Precomputed:
    """Vectors made beforehand."""

    def __init__(self, name: str, texts: Sequence[str], vectors: Any) -> None:
        self.name, self.dimension = name, vectors.shape[1]
        self._table = dict(zip(texts, vectors, strict=True))

    def embed(self, texts: Sequence[str]) -> Any:
        return np.array([self._table[text] for text in texts], dtype=np.float32)


def run(folder: Path, _: EmbeddedValkey, report: Report) -> None:
    """The whole comparison; without the data set only a line that says so."""
    if not DATA.exists():
        report.note("recall beside Chroma, LangGraph and mem0", "left out: make bench DATA=path/to/locomo10.json")
        return
    conversations = load(DATA)
    work, vectors = folder / "work.json", folder / "vectors.npz"
    turns = {c.id: [(turn.turn_id, spoken(turn)) for turn in _turns(c)] for c in conversations}
    questions = {c.id: [question.text for question in c.questions] for c in conversations}
    work.write_text(json.dumps([{"id": id, "turns": turns[id], "questions": questions[id]} for id in turns]))
    install()
    _peer("embed", work, vectors)
    stored = np.load(vectors)
    texts = stored["texts"].tolist()
    minilm = Precomputed("minilm", texts, stored["vectors"])
    wordllama = Precomputed("wordllama", texts, np.array(WordLlamaEmbedder().embed(texts)))
    measured = {
        "SQLite, wordllama": _ours(conversations, folder / "words", _sqlite(wordllama)),
        "SQLite, MiniLM": _ours(conversations, folder / "mini", _sqlite(minilm)),
        "LEANN, MiniLM": _ours(conversations, folder / "leann", lambda path: LeannStore(path, minilm)),
    }
    with running_postgres(folder / "server") as server:
        url = new_database(server)
        found = _ours(conversations, folder / "none", lambda _: PgVectorStore(url, minilm))
        with psycopg.connect(url) as db:
            size = db.execute("select pg_database_size(current_database())").fetchone()
        measured["PostgreSQL, MiniLM"] = Measured(found.found, found.search, found.add, size[0] if size else 0)
    for name in ("chroma", "langgraph", "mem0"):
        result = folder / f"{name}.json"
        _peer(name, work, vectors, folder / name, result)
        measured[f"{name}, MiniLM"] = Measured(**json.loads(result.read_text()), size=directory_size(folder / name))
    _report(conversations, measured, report)


def _turns(conversation: Conversation) -> list[Turn]:
    return [
        Turn(
            turn_id=exchange.turn_id,
            user_message=exchange.user_message,
            assistant_message=exchange.reply,
            created_at=exchange.created_at,
        )
        for exchange in conversation.exchanges
    ]


def _sqlite(embedder: Embedder) -> Callable[[Path], LongTermStore]:
    return lambda folder: SQLiteStore(folder / "memory.db", embedder)


def _ours(conversations: Sequence[Conversation], folder: Path, make: Callable[[Path], LongTermStore]) -> Measured:
    store = make(folder)
    scopes = {c.id: Scope(user_id=c.id, conversation_id=c.id) for c in conversations}
    batches = [[Memory(scope=scopes[c.id], turn=turn) for turn in _turns(c)] for c in conversations]
    started = time.perf_counter()
    for batch in batches:
        store.upsert(batch)
    added = time.perf_counter() - started
    found, taken = [], []
    for conversation in conversations:
        for question in conversation.questions:
            started = time.perf_counter()
            hits = store.search(scopes[conversation.id], question.text, 10)
            taken.append(time.perf_counter() - started)
            found.append([hit.memory.turn.turn_id for hit in hits])
    return Measured(found, taken, added, directory_size(folder))


def directory_size(folder: Path) -> int:
    """Bytes of all files in it."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def install() -> None:
    """Make the environment of the peers, if it is not there."""
    wanted = (PEERS / "requirements.txt").read_text()
    ready = ENVIRONMENT / "requirements.txt"
    if not ready.exists() or ready.read_text() != wanted:
        sys.stderr.write(f"installing the peers into {ENVIRONMENT}, which takes some minutes ...\n")
        venv.create(ENVIRONMENT, with_pip=True)
        pip = [str(ENVIRONMENT / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--requirement", str(PEERS / "requirements.txt")], check=True)
        ready.write_text(wanted)


def _peer(*arguments: str | Path) -> None:
    command = [ENVIRONMENT / "bin" / "python", PEERS / "adapters.py", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{arguments[0]}: {done.stderr[-2000:]}")


def _report(conversations: Sequence[Conversation], measured: dict[str, Measured], report: Report) -> None:
    questions = [question for conversation in conversations for question in conversation.questions]
    stored = sum(len(conversation.exchanges) for conversation in conversations)
    rows = []
    for name, result in measured.items():
        answers = list(zip(result.found, questions, strict=True))
        at5, at10 = (
            100 * statistics.mean(recall_at(found, question.evidence, k) for found, question in answers)
            for k in (5, 10)
        )
        first = [next((i for i, id in enumerate(found, 1) if id in q.evidence), None) for found, q in answers]
        mrr = statistics.mean(1 / rank if rank else 0.0 for rank in first)
        p50, p95 = (statistics.quantiles(result.search, n=100)[k] * 1000 for k in (49, 94))
        rows.append(
            (name, f"{at5:.1f}", f"{at10:.1f}", f"{mrr:.3f}", f"{stored / result.add:,.0f}", f"{p50:.1f}", f"{p95:.1f}",
             f"{result.size / 1e6:.1f}")
        )  # fmt: skip
        if name in AIMS:
            for k, (aim, share) in zip((5, 10), zip(AIMS[name], (at5, at10), strict=True), strict=True):
                report.add(f"LoCoMo recall@{k} of {name}", aim, share, 1.0, "%", at_least=True)
    report.table(
        f"LoCoMo: {len(questions):,} questions on {stored:,} exchanges; times without embedding",
        ("memory", "recall@5", "recall@10", "MRR", "add/s", "search p50 ms", "p95 ms", "MB on disk"),
        rows,
    )
