"""Encrypts the texts of conversations before they are written anywhere, when there are keys for it."""

import re
from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Self

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from memory_tasks.errors import SealError, SettingsError

if TYPE_CHECKING:
    from memory_tasks.settings import Settings

HOW_TO_MAKE = "python -c 'from cryptography.fernet import Fernet; print(Fernet.generate_key().decode())'"
_BEGINNING = "gAAAA"
"""Of every Fernet token. What we write unsealed where a token may stand is JSON, which begins otherwise."""
_TOKEN = re.compile(r"gAAAA[\w-]{64,}={0,2}")


class Sealer:
    """Seals texts with the first key and opens them with any; without keys, texts stay as they are.

    Args:
        keys: Fernet keys, newest first.

    Raises:
        SettingsError: A key is none.

    Example:
        >>> Sealer([new, old]).open(Sealer([old]).seal("hello"))
        'hello'
    """

    def __init__(self, keys: Iterable[str] = ()) -> None:
        try:
            fernets = [Fernet(key) for key in keys]
        except ValueError:
            raise SettingsError(
                f"MEMORY_TASKS_ENCRYPTION_KEYS: expected Fernet keys separated by commas; make one with {HOW_TO_MAKE}"
            ) from None
        self._fernet = MultiFernet(fernets) if fernets else None

    @classmethod
    def of(cls, settings: "Settings") -> Self:
        """The sealer of the settings."""
        keys = settings.encryption_keys.get_secret_value() if settings.encryption_keys else ""
        return cls(key.strip() for key in keys.split(",") if key.strip())

    @property
    def is_on(self) -> bool:
        """Whether there are keys."""
        return self._fernet is not None

    def seal(self, text: str) -> str:
        """The text as a token."""
        return self._fernet.encrypt(text.encode()).decode() if self._fernet else text

    def open(self, sealed: str) -> str:
        """The text of a token; what is not sealed is returned as it is.

        Raises:
            SealError: No key opens it, or it was changed.
        """
        return self.unseal(sealed) if sealed.startswith(_BEGINNING) else sealed

    def unseal(self, token: str) -> str:
        """Like `open`, for what must be sealed, because a stranger may have written it.

        Raises:
            SealError: No key opens it, it was changed, or it is no token at all.
        """
        if self._fernet is None:
            raise SealError("this text is encrypted: set MEMORY_TASKS_ENCRYPTION_KEYS to the keys it was written with")
        try:
            return self._fernet.decrypt(token.encode()).decode()
        except InvalidToken:
            raise SealError(
                "no key of MEMORY_TASKS_ENCRYPTION_KEYS opens this text: add the key it was written with at the end"
            ) from None

    def reveal(self, value: str) -> str:
        """The value with every token in it opened, for those who search everything; what can't be opened stays."""
        return _TOKEN.sub(lambda found: self._try_open(found.group()), value) if self._fernet else value

    def _try_open(self, token: str) -> str:
        try:
            return self.open(token)
        except SealError:
            return token


def new_key() -> str:
    """A fresh key."""
    return Fernet.generate_key().decode()


@lru_cache(maxsize=65_536)
def hidden_term(term: str, index_key: str) -> str:
    """What stands for a term in an index: the same for the same term, and nothing that can be read."""
    return blake2b(term.encode(), key=index_key.encode()[:64], digest_size=12).hexdigest()
