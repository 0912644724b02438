"""The Lua scripts that run in Redis: what has to change in one step."""

from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from redis.cluster import RedisCluster

from memory_tasks.connection import reaching


class Scripts:
    """The package's Lua files, by name; each is loaded when Redis does not have it yet.

    Example:
        >>> Scripts(client)("append", keys=[...], args=[...])
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._scripts: dict[str, Any] = {}

    def __call__(self, name: str, keys: Sequence[str], args: Sequence[str | int | float]) -> Any:
        """Run a script; its answer, with strings as str.

        Raises:
            StoreUnavailableError: Redis can't be reached or refused the script.
        """
        with reaching(self._client):
            return as_text(self._get(name)(keys=keys, args=args))

    def each(self, name: str, calls: Sequence[tuple[Sequence[str], Sequence[str | int | float]]]) -> list[Any]:
        """Run a script for several (keys, args) in one round trip; the answers in order.

        Raises:
            StoreUnavailableError: Redis can't be reached or refused the script.
        """
        if not calls:
            return []
        script = self._get(name)
        if isinstance(self._client, RedisCluster):
            # Its pipelines take no scripts.
            with reaching(self._client):
                return [as_text(script(keys=keys, args=args)) for keys, args in calls]
        with reaching(self._client), self._client.pipeline(transaction=False) as pipe:
            for keys, args in calls:
                script(keys=keys, args=args, client=pipe)
            return [as_text(answer) for answer in pipe.execute()]

    def _get(self, name: str) -> Any:
        if name not in self._scripts:
            source = files("memory_tasks").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")
            self._scripts[name] = self._client.register_script(source)
        return self._scripts[name]


def as_text(answer: Any) -> Any:
    """What Redis answered with strings as str: a caller may own the client, and have it decode or not."""
    if isinstance(answer, bytes):
        return answer.decode(errors="replace")
    return [as_text(part) for part in answer] if isinstance(answer, list) else answer
