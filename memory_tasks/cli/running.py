"""Commands that run the system, or talk to it."""

import importlib.util
import os
import signal
import sys
from types import FrameType
from typing import Annotated, NoReturn

import typer
from rich.text import Text

from memory_tasks.cli.console import DATA, DataFolder, connected, console, errors, explained
from memory_tasks.errors import MemoryTasksError, SettingsError

app = typer.Typer()

LOOPBACK = ("127.0.0.1", "::1", "localhost")


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
    web: Annotated[bool, typer.Option("--web", help="Serve the page too; needs the extra web.")] = False,
    host: Annotated[str, typer.Option(help="Address of the page.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of the page.")] = 8000,
) -> None:
    """Run everything on this machine until Ctrl-C: an embedded Valkey, a worker and beat.

    Data stays in the folder. With MEMORY_TASKS_REDIS_URL set, that Redis is used and no Valkey is started.
    The page has no login: whoever reaches it reads and erases what it remembers.
    """
    from workers.stack import Stack

    _stop_on_sigterm()
    with explained():
        if web and importlib.util.find_spec("sse_starlette") is None:
            raise SettingsError("the page needs an extra: pip install 'memory-tasks[web]'")
        stack = Stack(
            data,
            redis_url=os.environ.get("MEMORY_TASKS_REDIS_URL"),
            concurrency=concurrency,
            web=(host, port) if web else None,
        )
        try:
            with stack:
                console.print(f"Running; logs and data in {stack.folder}. Ctrl-C stops.")
                if "MEMORY_TASKS_REDIS_URL" not in os.environ:
                    console.print(f"For your web app:  export MEMORY_TASKS_REDIS_URL={stack.redis_url}")
                console.print("Talk to it:        memory-tasks chat")
                if web:
                    console.print(f"Or in a browser:   http://{host}:{port}")
                    if host not in LOOPBACK:
                        errors.print(
                            "Everybody who reaches that address reads and erases what is remembered: put your own "
                            "login in front of it. MEMORY_TASKS_WEB_HOSTS names it for browsers.",
                            style="yellow",
                        )
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
