"""The command `memory-tasks`."""

import typer

from memory_tasks.cli import data, operating, running

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
app.add_typer(running.app)
app.add_typer(operating.app)
app.add_typer(operating.failed_app, name="failed")
app.add_typer(data.app)
