"""Commands that move and erase what is remembered."""

from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from memory_tasks.cli.console import DATA, Conversation, DataFolder, User, connected, console, errors, explained
from memory_tasks.client import MemoryClient
from memory_tasks.errors import SealingMismatchError
from memory_tasks.models import ReplyRequest, Scope, now

app = typer.Typer()


def _scope(user: str | None, conversation: str | None) -> Scope | None:
    if conversation is not None and user is None:
        raise typer.BadParameter("--conversation needs --user")
    if user is None or conversation is None:
        return None
    return Scope.checked(user_id=user, conversation_id=conversation)


@app.command()
def forget(
    user: Annotated[str, typer.Option("--user", help="Whose.")],
    conversation: Conversation = None,
    turn: Annotated[list[str] | None, typer.Option(help="Only these turns of the conversation.")] = None,
    verify: Annotated[str | None, typer.Option(help="Afterwards look for this text in every tier.")] = None,
    data: DataFolder = DATA,
) -> None:
    """Erase turns, a conversation, or all of a user, in every tier. Repeat it when a tier was down."""
    if turn and conversation is None:
        raise typer.BadParameter("--turn needs --conversation")
    with connected(data) as client:
        if conversation is None:
            done = client.forget_user(user)
        elif turn:
            done = client.forget_turns(user, conversation, turn)
        else:
            done = client.forget(user, conversation)
        console.print(
            f"Erased: {done.working} turns of working memory, {done.long_term} memories, {done.ledger} ledger entries."
        )
        if verify:
            left = client.leftovers(verify)
            if any(left.values()):
                errors.print(f"The text is still in {left}.", style="red")
                raise typer.Exit(1)
            console.print("The text is nowhere any more.")


@app.command("export")
def export(
    file: Annotated[Path, typer.Argument(help="JSON Lines are written here.")],
    user: User = None,
    conversation: Conversation = None,
    data: DataFolder = DATA,
) -> None:
    """Write turns as JSON Lines, one a line: everything, a user, or one conversation."""
    scope = _scope(user, conversation)
    with connected(data) as client, file.open("w", encoding="utf-8") as output, Progress(console=errors) as progress:
        task = progress.add_task("turns", total=None)
        count = 0
        for line in client.export(user, scope):
            output.write(f"{line}\n")
            count += 1
            if not count % 100:
                progress.update(task, completed=count)
    console.print(f"{count} turns in {file}.")


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="Our JSON Lines, LoCoMo's JSON, or chats as OpenAI messages.")],
    user: Annotated[str | None, typer.Option(help="Whose memory chats become.")] = None,
    conversation: Annotated[str | None, typer.Option(help="The conversation chats become.")] = None,
    go_on: Annotated[bool, typer.Option("--go-on", help="Leave bad lines out instead of stopping.")] = False,
    data: DataFolder = DATA,
) -> None:
    """Read turns from a file. A second time changes nothing."""
    from memory_tasks.transfer import read_lines

    with connected(data) as client, Progress(console=errors) as progress:
        lines = progress.track(read_lines(file, user, conversation), description="turns")
        done = client.import_lines(lines, go_on=go_on)
    console.print(f"{done.stored['working']} turns into working memory, {done.stored['long_term']} into long-term.")
    for number, why in done.bad.items():
        errors.print(Text(f"line {number}: {why}"), style="red")
    if done.bad:
        raise typer.Exit(1)


@app.command()
def recall(
    text: Annotated[str, typer.Argument(help="What the user says.")],
    user: Annotated[str, typer.Option("--user", help="Whose memory.")],
    conversation: Annotated[str, typer.Option("--conversation", help="Which conversation.")],
    across: Annotated[bool, typer.Option("--across", help="Look in all conversations of the user.")] = False,
    top: Annotated[int | None, typer.Option(help="Memories at most; RECALL_TOP_K when not given.")] = None,
    since: Annotated[datetime | None, typer.Option(help="Only what was said at this time (UTC) or later.")] = None,
    until: Annotated[datetime | None, typer.Option(help="Only what was said before this time (UTC).")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Also what is not recalled, and why.")] = False,
    data: DataFolder = DATA,
) -> None:
    """What would be recalled for a message, with the evidence: its words, words nearby, its meaning (0 to 1)."""
    from memory_tasks.demo import hits_table

    request = ReplyRequest.checked(scope=Scope.checked(user_id=user, conversation_id=conversation), message=text)
    config: dict[str, Any] = {"recall_from": "user"} if across else {}
    if top is not None:
        config["recall_top_k"] = top
    with connected(data) as client:
        times = [time and time.replace(tzinfo=UTC) for time in (since, until)]
        candidates = client.explain(request, since=times[0], until=times[1], **config)
    recalled = [candidate for candidate in candidates if not candidate.refused]
    if not candidates:
        console.print("Nothing is in long-term memory there.")
    elif not recalled and not explain:
        console.print("Nothing is recalled. This came closest:")
        console.print(hits_table(candidates[:1]))
    else:
        console.print(hits_table(candidates if explain else recalled))


@app.command()
def migrate(
    source: Annotated[str, typer.Option("--from", help="URL of the store to read.")],
    target: Annotated[str, typer.Option("--to", help="URL of the store to write.")],
) -> None:
    """Copy long-term memory to another store. Interrupted, it goes on; repeated, it changes nothing."""
    from memory_tasks.settings import Settings
    from memory_tasks.stores import load_long_term
    from memory_tasks.transfer import migrate as copy

    with explained(), Progress(console=errors) as progress:
        try:
            old = load_long_term(Settings.load(long_term_url=source))
        except SealingMismatchError:
            if not Settings.load().encryption_keys:
                raise
            # The way to encrypt what was stored before there were keys.
            old = load_long_term(Settings.load(long_term_url=source, encryption_keys=None))
        new = load_long_term(Settings.load(long_term_url=target))
        task = progress.add_task("memories", total=None)
        copied = 0
        for copied in copy(old, new):
            progress.update(task, completed=copied)
    console.print(f"{copied} memories copied; every conversation has as many in the target.")


@app.command()
def scopes(
    each: Annotated[bool, typer.Option("--each", help="Also show every conversation.")] = False,
    limit: Annotated[int, typer.Option(help="Conversations to show at most.")] = 100,
    data: DataFolder = DATA,
) -> None:
    """Conversations with turns in working memory: how many, how many are due, since when."""
    from memory_tasks.registry import overview, registered

    with connected(data) as client:
        found = overview(client.redis, client.keys)
        console.print(f"{found.scopes} conversations have turns in working memory, {found.due} are due for promotion.")
        if found.oldest:
            console.print(f"The oldest turn that is not promoted yet is {_age(found.oldest)} old.")
        if found.dropped:
            errors.print(f"{found.dropped} turns were dropped because too many waited for promotion.", style="red")
        if each:
            table = Table("user", "conversation", "turns", "oldest", box=None)
            for scope, oldest in islice(registered(client.redis, client.keys), limit):
                turns = client.redis.llen(client.keys.scope(scope).turns)
                table.add_row(Text(scope.user_id), Text(scope.conversation_id), str(turns), _age(oldest))
            console.print(table)


def _age(since: datetime) -> str:
    return str(now() - since).partition(".")[0]


@app.command()
def promote(
    user: User = None,
    conversation: Conversation = None,
    now_: Annotated[bool, typer.Option("--now", help="Whatever the age of the turns.")] = False,
    data: DataFolder = DATA,
) -> None:
    """Move aged turns to long-term memory, here and without a worker; with --now, all turns."""
    scope = _scope(user, conversation)
    with connected(data) as client, Progress(console=errors) as progress:
        task = progress.add_task("turns", total=None)
        moved = 0
        for done in client.promote(_chosen(client, user, scope), whatever_age=now_):
            moved += done.promoted
            progress.update(task, completed=moved)
            if done.failed:
                errors.print(f"{len(done.failed)} turns stay: {', '.join(sorted(set(done.failed.values())))}")
    console.print(f"{moved} turns moved to long-term memory.")


def _chosen(client: MemoryClient, user: str | None, scope: Scope | None) -> Iterable[Scope]:
    from memory_tasks.registry import registered

    if scope:
        return [scope]
    return (found for found, _ in registered(client.redis, client.keys) if user in (None, found.user_id))
