"""The demo: the whole system on embedded defaults, holding a conversation that outgrows the recent turns."""

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from memory_tasks.client import MemoryClient
from memory_tasks.errors import MemoryTasksError
from memory_tasks.factory import service_from_settings
from memory_tasks.models import Candidate, Hit, Reply, Scope
from memory_tasks.pending import PendingReply
from memory_tasks.settings import Settings
from workers.stack import Stack

SCOPE = Scope(user_id="ann", conversation_id="demo")
CONVERSATION = (
    "Hi! I'm planning dinner for Saturday. By the way, my sister Mia is allergic to peanuts.",
    "We will be six people, and two of them are vegetarian.",
    "I have a big oven and a small balcony grill.",
    "Guests arrive at seven, so the food should be ready by half past.",
)
QUESTION = "Which food must I avoid because of Mia's allergy?"
NEEDED = "allergic to peanuts"
PATIENCE = 60.0
SETTINGS = {
    "recent_turns": "2",
    "recall_top_k": "2",
    "promote_after": "1",
    "promote_interval": "0.5",
    "sweep_interval": "0.5",
}


class DemoFailedError(MemoryTasksError):
    """The demo did not see what it was there to show."""


def run(console: Console) -> None:
    """Run the demo in a temporary folder that is gone afterwards.

    Raises:
        DemoFailedError: Recall missed the turn it had to find, or something took too long.
    """
    folder = Path(tempfile.mkdtemp(prefix="memory-tasks-demo-"))
    try:
        console.print("Starting Valkey, a worker and beat ...", style="dim")
        started = time.monotonic()
        environment = {f"MEMORY_TASKS_{name.upper()}": value for name, value in SETTINGS.items()}
        with Stack(folder, environment) as stack:
            settings = Settings.load(
                redis_url=stack.redis_url,
                long_term_url=stack.environment["MEMORY_TASKS_LONG_TERM_URL"],
                **SETTINGS,
            )
            client = MemoryClient(settings)
            try:
                _converse(console, client, settings, stack, started)
            finally:
                client.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _converse(console: Console, client: MemoryClient, settings: Settings, stack: Stack, started: float) -> None:
    for number, message in enumerate(CONVERSATION):
        _say(console, client, message)
        if number == 0:
            console.print(f"(the first answer came {time.monotonic() - started:.1f} s after the start)\n", style="dim")
    service = service_from_settings(settings)
    console.print("The turns age; beat sends them to long-term memory ...", style="dim")
    _wait(stack, lambda: service.long_term.count(SCOPE) == len(CONVERSATION))
    console.print(
        f"{len(CONVERSATION)} turns promoted. None of them is among the recent turns any more.\n", style="dim"
    )
    reply = _say(console, client, QUESTION)
    if not any(NEEDED in hit.memory.turn.user_message for hit in reply.memories):
        raise DemoFailedError("recall did not find the turn about Mia's allergy")
    console.print("The answer was only in long-term memory, and recall found it.", style="bold green")


def _say(console: Console, client: MemoryClient, message: str) -> Reply:
    console.print(Text.assemble(("you        ", "bold cyan"), message))
    pending = client.reply(SCOPE.user_id, SCOPE.conversation_id, message)
    reply = pending.result(PATIENCE)
    show_reply(console, reply, pending)
    return reply


def show_reply(console: Console, reply: Reply, pending: PendingReply) -> None:
    """Print an answer, what was recalled for it, and how long each step took."""
    console.print(Text.assemble(("assistant  ", "bold magenta"), reply.answer))
    if reply.memories:
        console.print(hits_table(reply.memories))
    elif reply.closest:
        console.print("           nothing was recalled; closest was", style="dim")
        console.print(hits_table([reply.closest]))
    for left_out in reply.degraded:
        console.print(Text(f"           without {left_out}"), style="yellow")
    times = pending.wait_persisted(PATIENCE).times
    order = [state for state in ("accepted", "recalled", "completed", "persisted") if state in times]
    steps = [
        f"{state} +{(times[state] - times[before]).total_seconds() * 1000:.0f} ms" for before, state in pairwise(order)
    ]
    console.print(Text(f"           {', '.join(steps)}\n"), style="dim")


def hits_table(candidates: Sequence[Hit | Candidate]) -> Table:
    """Memories with the evidence for each, and why one was refused."""
    table = Table(box=None, padding=(0, 1), show_header=True, header_style="dim")
    for column in ("score", "words", "nearby", "meaning", "said", "recalled"):
        table.add_column(column, no_wrap=column != "recalled")
    for candidate in candidates:
        hit, refused = (candidate, None) if isinstance(candidate, Hit) else (candidate.hit, candidate.refused)
        turn = hit.memory.turn
        evidence = ("-" if found is None else f"{found:.2f}" for found in (hit.words, hit.nearby, hit.vector))
        text = Text(turn.user_message[:200])
        if refused:
            text.append(f"\nnot recalled: {refused}", style="yellow")
        table.add_row(f"{hit.score:.2f}", *evidence, f"{turn.created_at:%Y-%m-%d %H:%M:%S}", text)
    return table


def _wait(stack: Stack, reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not reached():
        stack.wait(0.1)
        if time.monotonic() > deadline:
            raise DemoFailedError(f"promotion did not finish within {PATIENCE:g} s")
