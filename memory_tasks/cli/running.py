"""Commands that run the system, or talk to it."""

import os
import signal
import sys
from types import FrameType
from typing import Annotated, NoReturn

import typer
from rich.text import Text

from memory_tasks.cli.console import DATA, DataFolder, connected, console, errors, explained
from memory_tasks.errors import MemoryTasksError

app = typer.Typer()


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
    with explained():
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
    with explained():
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

    with connected(data) as client:
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
