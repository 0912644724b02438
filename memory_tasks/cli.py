"""The command `memory-tasks`."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from memory_tasks.client import MemoryClient
from memory_tasks.errors import MemoryTasksError
from memory_tasks.ledger import TurnStatus

app = typer.Typer(
    name="memory-tasks",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    rich_markup_mode="rich",
    help="""Conversation memory for LLM apps, run by Celery workers.

    [bold]memory-tasks demo[/] shows the whole thing in half a minute. [bold]memory-tasks up[/] runs it on this
    machine; then [bold]memory-tasks chat[/] in a second terminal talks to it.

    Settings come from the environment: MEMORY_TASKS_REDIS_URL, MEMORY_TASKS_COMPLETER=openai, ...
    """,
)
failed_app = typer.Typer(
    no_args_is_help=True, help="Dead letters: turns whose step failed for good, kept until you decide."
)
app.add_typer(failed_app, name="failed")

console = Console()
errors = Console(stderr=True)

DataFolder = Annotated[Path, typer.Option("--data", help="Folder for data and logs.")]
TurnId = Annotated[str, typer.Argument(help="The turn's id.")]
User = Annotated[str | None, typer.Option("--user", help="The user, when several have a turn of this id.")]
Conversation = Annotated[str | None, typer.Option("--conversation", help="The conversation.")]
DATA = Path("memory-tasks-data")


@contextmanager
def _explained() -> Iterator[None]:
    """Show the package's own errors as one line, and end with code 1."""
    try:
        yield
    except MemoryTasksError as error:
        errors.print(Text(f"{type(error).__name__}: {error}"), style="red")
        raise typer.Exit(1) from None


@contextmanager
def _client(data: Path = DATA) -> Iterator[MemoryClient]:
    from workers.stack import running_url

    overrides = {}
    url = running_url(data)
    if url and "MEMORY_TASKS_REDIS_URL" not in os.environ:
        overrides["redis_url"] = url
    with _explained():
        client = MemoryClient.from_settings(**overrides)
        try:
            yield client
        finally:
            client.close()


def _stop_on_sigterm() -> None:
    """A SIGTERM ends a command as Ctrl-C does, so that what it started is stopped and cleaned up."""

    def interrupt(_: int, __: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


@app.command()
def demo() -> None:
    """Show the main job: converse, let turns age and be promoted, recall one from long-term memory.

    Starts an embedded Valkey, a worker and beat, and leaves nothing behind. With
    MEMORY_TASKS_COMPLETER=openai and OPENAI_API_KEY it talks to the real model.
    """
    from memory_tasks.demo import run

    _stop_on_sigterm()
    with _explained():
        run(console)


@app.command()
def up(
    data: DataFolder = DATA,
    concurrency: Annotated[int, typer.Option(help="Threads of the worker.")] = 20,
) -> None:
    """Run everything on this machine until Ctrl-C: an embedded Valkey, a worker and beat.

    Data stays in the folder. With MEMORY_TASKS_REDIS_URL set, that Redis is used and no Valkey is started.
    """
    from workers.stack import Stack

    _stop_on_sigterm()
    with _explained():
        stack = Stack(data, redis_url=os.environ.get("MEMORY_TASKS_REDIS_URL"), concurrency=concurrency)
        try:
            with stack:
                console.print(f"Running; logs and data in {stack.folder}. Ctrl-C stops.")
                if "MEMORY_TASKS_REDIS_URL" not in os.environ:
                    console.print(f"For your web app:  export MEMORY_TASKS_REDIS_URL={stack.redis_url}")
                console.print("Talk to it:        memory-tasks chat")
                while True:
                    stack.wait(1.0)
        except KeyboardInterrupt:
            console.print("Stopped; the data is kept.")
        except RuntimeError as error:
            errors.print(Text(str(error)), style="red")
            raise typer.Exit(1) from None


@app.command()
def chat(
    user: Annotated[str, typer.Option(help="Who is talking.")] = os.environ.get("USER") or "me",
    conversation: Annotated[str, typer.Option(help="Which conversation to go on with.")] = "terminal",
    data: DataFolder = DATA,
) -> None:
    """Talk in the terminal; shows what was recalled for each answer. Begin a line with ! to have it remembered."""
    from memory_tasks.demo import show_reply

    with _client(data) as client:
        console.print("Type a message; Ctrl-D ends.", style="dim")
        while True:
            try:
                line = console.input(Text("you        ", style="bold cyan")) if sys.stdin.isatty() else input()
            except (EOFError, KeyboardInterrupt):
                break
            if not line.strip():
                continue
            pending = client.reply(user, conversation, line.removeprefix("!").strip(), remember=line.startswith("!"))
            try:
                show_reply(console, pending.result(timeout=300), pending)
            except KeyboardInterrupt:
                console.print(f"The turn goes on without you: memory-tasks status {pending.turn_id}", style="dim")
            except MemoryTasksError as error:
                errors.print(Text(str(error)), style="red")


@app.command()
def status(turn: TurnId, user: User = None, conversation: Conversation = None, data: DataFolder = DATA) -> None:
    """How a turn stands: its state, when it got there, failures so far, calls of the model."""
    with _client(data) as client:
        _show_status(_find(client, turn, user, conversation))


@app.command()
def settings() -> None:
    """Every setting with its default and meaning."""
    from memory_tasks.settings import Settings

    table = Table("environment variable", "default", "meaning", box=None)
    for row in Settings.documented():
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)


@app.command()
def health(
    worker: Annotated[str | None, typer.Option(help="Ask only this worker, by its node name: celery@host.")] = None,
    data: DataFolder = DATA,
) -> None:
    """For probes: exit code 0 when all is well, 1 with what to do. With --worker, only whether that one consumes."""
    from memory_tasks.health import system_problems, worker_problem

    with _client(data) as client:
        found = [worker_problem(client, worker)] if worker else system_problems(client)
        problems = [problem for problem in found if problem]
    for problem in problems:
        errors.print(Text(problem), style="red")
    if problems:
        raise typer.Exit(1)
    console.print("All is well.")


@failed_app.command("list")
def failed_list(data: DataFolder = DATA) -> None:
    """All dead letters, with their error and age."""
    from memory_tasks.models import now

    with _client(data) as client:
        table = Table("turn", "user", "conversation", "step", "error", "age", box=None)
        for found in client.failed():
            age = now() - found.times["failed"]
            row = (
                found.turn_id, found.scope.user_id, found.scope.conversation_id, found.failed_step, found.error,
                str(age).partition(".")[0],
            )  # fmt: skip
            table.add_row(*(Text(value or "-") for value in row))
        console.print(table if table.row_count else "No dead letters.")


@failed_app.command("show")
def failed_show(turn: TurnId, user: User = None, conversation: Conversation = None, data: DataFolder = DATA) -> None:
    """One dead letter."""
    with _client(data) as client:
        _show_status(_find(client, turn, user, conversation))


@failed_app.command("retry")
def failed_retry(turn: TurnId, user: User = None, conversation: Conversation = None, data: DataFolder = DATA) -> None:
    """Go on from the saved state, after you have repaired the cause. An answer that exists is not paid for again."""
    with _client(data) as client:
        found = _find(client, turn, user, conversation)
        client.retry_failed(found.scope.user_id, found.scope.conversation_id, turn)
        console.print(f"Goes on: memory-tasks status {turn}")


@failed_app.command("drop")
def failed_drop(turn: TurnId, user: User = None, conversation: Conversation = None, data: DataFolder = DATA) -> None:
    """Erase a dead letter."""
    with _client(data) as client:
        found = _find(client, turn, user, conversation)
        client.drop_failed(found.scope.user_id, found.scope.conversation_id, turn)
        console.print("Dropped.")


def _find(client: MemoryClient, turn: str, user: str | None, conversation: str | None) -> TurnStatus:
    if (user is None) != (conversation is None):
        raise typer.BadParameter("give --user and --conversation together")
    if user is not None and conversation is not None:
        return client.pending(user, conversation, turn).status()
    return client.find(turn)


def _show_status(found: TurnStatus) -> None:
    table = Table(box=None, show_header=False)
    rows = [
        ("turn", found.turn_id),
        ("user", found.scope.user_id),
        ("conversation", found.scope.conversation_id),
        ("state", found.state),
        *((f"{state} at", f"{time:%Y-%m-%d %H:%M:%S.%f} UTC") for state, time in found.times.items()),
        *((f"failures in {step}", str(count)) for step, count in found.attempts.items()),
        ("model calls", str(found.calls)),
    ]
    rows += [("failed in", found.failed_step)] if found.failed_step else []
    rows += [("last error", found.error)] if found.error else []
    for name, value in rows:
        table.add_row(Text(name, style="dim"), Text(value))
    console.print(table)
