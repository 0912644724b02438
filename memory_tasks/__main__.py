"""`python -m memory_tasks` is the command `memory-tasks`."""

from memory_tasks.cli import app

app()
