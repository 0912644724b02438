"""Connections to PostgreSQL: a pool for each process, and transactions that see one state."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from os import getpid
from typing import Any

from memory_tasks.connection import without_password
from memory_tasks.errors import StoreUnavailableError
from memory_tasks.loading import needs_extra

try:
    import psycopg
    from pgvector.psycopg import register_vector
    from psycopg_pool import ConnectionPool, PoolTimeout
except ImportError as error:
    raise needs_extra("postgres", "MEMORY_TASKS_LONG_TERM_URL=postgresql://...") from error

__all__ = ["CONNECT_SECONDS", "SCHEMA", "Database", "psycopg"]

SCHEMA = "memory_tasks"
POOL_SIZE = 8
CONNECT_SECONDS = 10.0


class Database:
    """Safe between threads and after a fork.

    Args:
        url: A libpq URL.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._pid = 0
        self._pool: ConnectionPool[Any] | None = None

    def _connections(self) -> "ConnectionPool[Any]":
        with self._lock:
            if self._pool is None or self._pid != getpid():
                self._pool = ConnectionPool(
                    self._url,
                    min_size=0,
                    max_size=POOL_SIZE,
                    timeout=CONNECT_SECONDS,
                    kwargs={"autocommit": False, "connect_timeout": int(CONNECT_SECONDS)},
                    configure=_configure,
                    open=True,
                )
                self._pid = getpid()
            return self._pool

    @contextmanager
    def transaction(self, *, write: bool) -> Iterator[Any]:
        """A connection, whose work is committed at the end.

        Raises:
            StoreUnavailableError: Nothing was written.
        """
        try:
            with self._connections().connection() as db:
                # A reader sees one state throughout; a writer must see what others have just committed.
                db.isolation_level = (
                    psycopg.IsolationLevel.READ_COMMITTED if write else psycopg.IsolationLevel.REPEATABLE_READ
                )
                yield db
        except (psycopg.Error, PoolTimeout) as error:
            # The server's message may quote values.
            detail = getattr(getattr(error, "diag", None), "sqlstate", None) or type(error).__name__
            raise StoreUnavailableError(
                f"long-term store {without_password(self._url)} can't be used ({detail}); check that it runs and "
                "MEMORY_TASKS_LONG_TERM_URL"
            ) from error

    def close(self) -> None:
        """Close the connections of this process."""
        with self._lock:
            if self._pool is not None and self._pid == getpid():
                self._pool.close()
            self._pool = None


def _configure(db: Any) -> None:
    db.execute(f"set search_path = {SCHEMA}, public")
    register_vector(db)
    db.commit()
