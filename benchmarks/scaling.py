"""How search, writing and disk grow: one conversation of 10 to 100,000 turns, and 10,000 to 1,000,000 turns in all."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psycopg

from benchmarks.recall import ENVIRONMENT, PEERS, directory_size, install
from benchmarks.report import Report
from benchmarks.stores import BATCH, Corpus, RandomEmbedder, fill, search_ms
from memory_tasks import SQLiteStore
from memory_tasks.ports import LongTermStore
from memory_tasks.stores.leann import LeannStore
from memory_tasks.stores.pgvector import PgVectorStore
from tests.postgres import new_database, running_postgres
from workers.valkey import EmbeddedValkey

SIZES = [int(size) for size in os.environ.get("BENCH_SIZES", "10,100,1000,10000,100000").split(",")]
TOTALS = [int(size) for size in os.environ.get("BENCH_TOTALS", "10000,100000,1000000").split(",")]
CONVERSATION = 1000
"""Turns of each conversation while the whole store grows."""
DOCS = Path(__file__).parents[1] / "docs"
COLUMNS = ("store", "turns of the conversation", "add/s", "search p50 ms", "search p95 ms", "bytes a turn")
Point = tuple[str, int, float, float, float, float]


def run(folder: Path, _: EmbeddedValkey, report: Report) -> None:
    """Both curves, as tables and as a picture under docs/."""
    corpus = Corpus()
    points: list[Point] = []
    with running_postgres(folder / "server") as server:
        for size in SIZES:
            memories = corpus.memories(f"user{size}", size)
            for name, (make, on_disk) in _stores(folder / str(size), new_database(server)).items():
                store = make()
                empty = on_disk()
                started = time.perf_counter()
                fill(store, memories)
                added = time.perf_counter() - started
                p50, p95 = search_ms(store, corpus, f"user{size}")
                points.append((name, size, size / added, p50, p95, (on_disk() - empty) / size))
                sys.stderr.write(f"{name} with {size:,} turns: p95 {p95:.1f} ms\n")
    totals = _totals(folder, corpus)
    _write(points, totals, report)


def _stores(folder: Path, database: str) -> dict[str, tuple[Callable[[], LongTermStore], Callable[[], int]]]:
    """How each store is opened, and how many bytes it has on disk."""
    sqlite, leann, embedder = folder / "sqlite", folder / "leann", RandomEmbedder()
    return {
        "SQLite": (lambda: SQLiteStore(sqlite / "m.db", embedder), lambda: directory_size(sqlite)),
        "LEANN": (lambda: LeannStore(leann, embedder), lambda: directory_size(leann)),
        "PostgreSQL": (lambda: PgVectorStore(database, embedder), lambda: _database_size(database)),
    }


def _totals(folder: Path, corpus: Corpus) -> list[tuple[int, float, float]]:
    """Search in one conversation while the store grows around it."""
    store = SQLiteStore(folder / "all" / "m.db", RandomEmbedder())
    stored, points = 0, list[tuple[int, float, float]]()
    for total in TOTALS:
        while stored < total:
            fill(store, corpus.memories(f"user{stored}", CONVERSATION))
            stored += CONVERSATION
        points.append((total, *search_ms(store, corpus, "user0")))
        sys.stderr.write(f"{total:,} turns in all: p95 {points[-1][2]:.1f} ms\n")
    return points


def _database_size(url: str) -> int:
    with psycopg.connect(url) as db:
        row = db.execute("select pg_database_size(current_database())").fetchone()
    return int(row[0]) if row else 0


def _write(points: Sequence[Point], totals: Sequence[tuple[int, float, float]], report: Report) -> None:
    by_size = [
        (name, f"{size:,}", f"{rate:,.0f}", f"{p50:.1f}", f"{p95:.1f}", f"{size_on_disk:,.0f}")
        for name, size, rate, p50, p95, size_on_disk in points
    ]
    by_total = [(f"{total:,}", f"{p50:.1f}", f"{p95:.1f}") for total, p50, p95 in totals]
    report.table(f"one conversation; batches of {BATCH}, vectors of 256 random numbers", COLUMNS, by_size)
    total_columns = ("turns in all", "search p50 ms", "search p95 ms")
    report.table(f"SQLite, a conversation of {CONVERSATION:,} turns while the store grows", total_columns, by_total)
    DOCS.mkdir(exist_ok=True)
    text = [
        "# How it scales",
        "",
        "Two cores, without embedding; words as frequent as in a language. Made by `make scaling`.",
        "",
        "![search time by size](scaling.png)",
        "",
        *_markdown(COLUMNS, by_size),
        "",
        f"A conversation of {CONVERSATION:,} turns in SQLite, while the store grows around it:",
        "",
        *_markdown(total_columns, by_total),
        "",
    ]
    (DOCS / "scaling.md").write_text("\n".join(text), encoding="utf-8")
    install()
    curves = {name: [(p[1], p[4]) for p in points if p[0] == name] for name in dict.fromkeys(p[0] for p in points)}
    picture = {
        "curves": curves,
        "totals": [(total, p95) for total, _, p95 in totals],
        "target": str(DOCS / "scaling.png"),
    }
    subprocess.run(
        [ENVIRONMENT / "bin" / "python", PEERS / "plot.py"], input=json.dumps(picture), text=True, check=True
    )


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (columns, ["---"] * len(columns), *rows)]
