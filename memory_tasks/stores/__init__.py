"""Where turns are kept: working memory in Redis, long-term memory in SQLite or in a store of the host's."""

from pathlib import Path
from typing import TYPE_CHECKING, cast

from memory_tasks.embedders import load_embedder
from memory_tasks.errors import SettingsError
from memory_tasks.loading import import_attribute
from memory_tasks.ports import LongTermStore
from memory_tasks.sealing import Sealer

if TYPE_CHECKING:
    from memory_tasks.settings import Settings


def load_long_term(settings: "Settings") -> LongTermStore:
    """The store that `MEMORY_TASKS_LONG_TERM_URL` names.

    `sqlite:///relative/path`, `sqlite:////absolute/path`, `postgresql://user@host/database`,
    `leann:///path/of/folder`, or `package.module:factory`, which is called with the settings.

    Raises:
        SettingsError: The URL has another form, or the factory can't be imported.
        IndexMismatchError: The store was made with another embedder, a newer format, or (not) encrypted.
    """
    url = settings.long_term_url
    scheme, separator, path = url.partition(":///")
    if scheme == "sqlite" and separator and path:
        from memory_tasks.stores.sqlite import SQLiteStore

        return SQLiteStore(Path(path), load_embedder(settings), Sealer.of(settings))
    if scheme == "leann" and separator and path:
        from memory_tasks.stores.leann import LeannStore

        return LeannStore(Path(path), load_embedder(settings), Sealer.of(settings))
    if url.startswith(("postgresql://", "postgres://")):
        from memory_tasks.stores.pgvector import PgVectorStore

        return PgVectorStore(url, load_embedder(settings), Sealer.of(settings))
    if "/" not in url and ":" in url:
        return cast(LongTermStore, import_attribute(url, "MEMORY_TASKS_LONG_TERM_URL")(settings))
    raise SettingsError(
        "MEMORY_TASKS_LONG_TERM_URL: use sqlite:///path/to/file.db, postgresql://..., leann:///path/of/folder or "
        f"package.module:factory (the scheme given is {scheme!r})"
    )
