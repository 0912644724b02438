"""Sends whole LoCoMo conversations through a running worker, promotes everything, and searches each question."""

import json
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks import recorded
from benchmarks.locomo import Conversation, load, recall_at
from memory_tasks import MemoryClient, MemoryService, Scope, Settings
from memory_tasks.factory import service_from_settings
from workers.stack import Stack

USER = "locomo"
PATIENCE = 60.0


def main(path: Path) -> int:
    """Replay all conversations of the file; 0 when nothing was lost, doubled or paid for twice."""
    if not path.exists():
        sys.stderr.write(f"no such file: {path}; give the data set with make replay DATA=path/to/locomo10.json\n")
        return 2
    conversations = load(path)
    with tempfile.TemporaryDirectory(prefix="memory-tasks-replay-") as folder:
        calls = Path(folder) / "calls"
        calls.touch()
        environment = {
            "MEMORY_TASKS_COMPLETER": "benchmarks.recorded:complete",
            recorded.DATA: str(path.resolve()),
            recorded.CALLS: str(calls),
        }
        with Stack(Path(folder), environment) as stack:
            settings = Settings.load(
                redis_url=stack.redis_url, long_term_url=stack.environment["MEMORY_TASKS_LONG_TERM_URL"]
            )
            client, service = MemoryClient(settings), service_from_settings(settings)
            with _progress() as progress:
                milliseconds = _send(client, conversations, progress)
                stored = _promote(service, conversations, progress)
                recall5, recall10 = _search(service, conversations, progress)
            client.close()
        paid = calls.read_text().split()
    sent = [exchange.turn_id for conversation in conversations for exchange in conversation.exchanges]
    percentiles = statistics.quantiles(milliseconds, n=100)
    result = {
        "conversations": len(conversations),
        "turns_sent": len(sent),
        "stored": len(set(stored)),
        "lost": len(set(sent) - set(stored)),
        "doubled": len(stored) - len(set(stored)),
        "model_calls": len(paid),
        "p50_ms": round(percentiles[49], 1),
        "p95_ms": round(percentiles[94], 1),
        "questions": sum(len(conversation.questions) for conversation in conversations),
        "recall_at_5": round(100 * recall5, 1),
        "recall_at_10": round(100 * recall10, 1),
    }
    sys.stdout.write(json.dumps(result) + "\n")
    return 0 if result["lost"] == result["doubled"] == 0 and len(paid) == len(sent) else 1


def _progress() -> Progress:
    columns = (TextColumn("{task.description:>9}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True))


def _scope(conversation: Conversation) -> Scope:
    return Scope(user_id=USER, conversation_id=conversation.id)


def _send(client: MemoryClient, conversations: list[Conversation], progress: Progress) -> list[float]:
    task = progress.add_task("replies", total=sum(len(c.exchanges) for c in conversations))
    milliseconds = []
    for conversation in conversations:
        for exchange in conversation.exchanges:
            started = time.perf_counter()
            pending = client.reply(
                USER,
                conversation.id,
                exchange.user_message,
                idempotency_key=exchange.turn_id,
                created_at=exchange.created_at,
            )
            reply = pending.result(PATIENCE)
            milliseconds.append((time.perf_counter() - started) * 1000)
            if reply.answer != exchange.reply:
                raise RuntimeError(f"{exchange.turn_id}: the answer is not the recorded one")
            progress.advance(task)
        pending.wait_persisted(PATIENCE)
    return milliseconds


def _promote(service: MemoryService, conversations: list[Conversation], progress: Progress) -> list[str]:
    """Move everything to long-term memory; the ids of all turns that are stored anywhere, doubled ones twice."""
    task = progress.add_task("promotion", total=len(conversations))
    stored: list[str] = []
    for conversation in conversations:
        scope = _scope(conversation)
        while service.promote_older(scope, datetime.now(UTC) + timedelta(days=1), 500).promoted:
            pass
        left = service.working.recent(scope, 10_000)
        stored += [memory.turn.turn_id for memory in service.long_term.export(None, scope)]
        stored += [turn.turn_id for turn in left]
        progress.advance(task)
    return stored


def _search(service: MemoryService, conversations: list[Conversation], progress: Progress) -> tuple[float, float]:
    task = progress.add_task("questions", total=sum(len(c.questions) for c in conversations))
    at5, at10 = [], []
    for conversation in conversations:
        for question in conversation.questions:
            hits = service.long_term.search(_scope(conversation), question.text, 10)
            ranked = [hit.memory.turn.turn_id for hit in hits]
            at5.append(recall_at(ranked, question.evidence, 5))
            at10.append(recall_at(ranked, question.evidence, 10))
            progress.advance(task)
    return statistics.mean(at5), statistics.mean(at10)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
