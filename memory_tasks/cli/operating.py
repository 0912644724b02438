"""Commands that look after the system: how turns stand, what has failed, whether all is well."""

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from memory_tasks.cli.console import DATA, Conversation, DataFolder, User, connected, console, errors
from memory_tasks.client import MemoryClient
from memory_tasks.turns import TurnStatus

app = typer.Typer()
failed_app = typer.Typer(
    no_args_is_help=True, help="Dead letters: turns whose step failed for good, kept until you decide."
)
TurnId = Annotated[str, typer.Argument(help="The turn's id.")]


@app.command()
def status(turn: TurnId, user: User = None, conversation: Conversation = None, data: DataFolder = DATA) -> None:
    """How a turn stands: its state, when it got there, failures so far, calls of the model."""
    with connected(data) as client:
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

    with connected(data) as client:
        found = [worker_problem(client, worker)] if worker else system_problems(client)
        problems = [problem for problem in found if problem]
    for problem in problems:
        errors.print(Text(problem), style="red")
    if problems:
        raise typer.Exit(1)
    console.print("All is well.")


@app.command()
def doctor(data: DataFolder = DATA) -> None:
    """One page of checks, with a remedy for each that is not well. Exit code 1 when there is any."""
    from memory_tasks.health import checks

    table = Table(box=None, show_header=False)
    ill = 0
    with connected(data) as client:
        for check in checks(client):
            ill += bool(check.remedy)
            mark = Text("!!", style="red") if check.remedy else Text("ok", style="green")
            table.add_row(mark, Text(check.name), Text(check.found))
            if check.remedy:
                table.add_row("", "", Text(check.remedy, style="yellow"))
    console.print(table)
    if ill:
        raise typer.Exit(1)


@failed_app.command("list")
def failed_list(data: DataFolder = DATA) -> None:
    """All dead letters, with their error and age."""
    from memory_tasks.models import now

    with connected(data) as client:
        table = Table(box=None)
        # Never cut: it is what the other commands take.
        table.add_column("turn", no_wrap=True, min_width=36)
        for column in ("user", "conversation", "step", "error", "age"):
            table.add_column(column, overflow="fold")
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
    with connected(data) as client:
        _show_status(_find(client, turn, user, conversation))


@failed_app.command("retry")
def failed_retry(turn: TurnId, user: User = None, conversation: Conversation = None, data: DataFolder = DATA) -> None:
    """Go on from the saved state, after you have repaired the cause. An answer that exists is not paid for again."""
    with connected(data) as client:
        found = _find(client, turn, user, conversation)
        client.retry_failed(found.scope.user_id, found.scope.conversation_id, turn)
        console.print(f"Goes on: memory-tasks status {turn}")


@failed_app.command("drop")
def failed_drop(turn: TurnId, user: User = None, conversation: Conversation = None, data: DataFolder = DATA) -> None:
    """Erase a dead letter."""
    with connected(data) as client:
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
