"""What the commands share."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from memory_tasks.client import MemoryClient
from memory_tasks.errors import MemoryTasksError

console = Console()
errors = Console(stderr=True)

DATA = Path("memory-tasks-data")
DataFolder = Annotated[Path, typer.Option("--data", help="Folder for data and logs.")]
User = Annotated[str | None, typer.Option("--user", help="The user.")]
Conversation = Annotated[str | None, typer.Option("--conversation", help="The conversation.")]


@contextmanager
def explained() -> Iterator[None]:
    """Show the package's own errors as one line, and end with code 1."""
    try:
        yield
    except MemoryTasksError as error:
        errors.print(Text(f"{type(error).__name__}: {error}"), style="red")
        raise typer.Exit(1) from None


@contextmanager
def connected(data: Path = DATA) -> Iterator[MemoryClient]:
    """A client of the settings, or of the stack that runs in the data folder."""
    from workers.stack import running_url

    overrides = {}
    url = running_url(data)
    if url and "MEMORY_TASKS_REDIS_URL" not in os.environ:
        overrides["redis_url"] = url
        if "MEMORY_TASKS_LONG_TERM_URL" not in os.environ:
            overrides["long_term_url"] = f"sqlite:///{data.resolve() / 'memory.db'}"
    with explained():
        client = MemoryClient.from_settings(**overrides)
        try:
            yield client
        finally:
            client.close()
