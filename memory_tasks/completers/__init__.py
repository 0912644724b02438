"""Completers by name: offline, openai, or "package.module:attribute"."""

from typing import TYPE_CHECKING, cast

from memory_tasks.errors import SettingsError
from memory_tasks.loading import import_attribute
from memory_tasks.ports import Completer

if TYPE_CHECKING:
    from memory_tasks.settings import Settings


def load_completer(settings: "Settings") -> Completer:
    """The completer that `MEMORY_TASKS_COMPLETER` names.

    Raises:
        SettingsError: The name is unknown, or what it needs is not installed or not set.
    """
    match settings.completer:
        case "offline":
            from memory_tasks.completers.offline import complete_offline

            return complete_offline
        case "openai":
            from memory_tasks.completers.openai import OpenAICompleter

            return OpenAICompleter(settings)
        case name if ":" in name:
            found = import_attribute(name, "MEMORY_TASKS_COMPLETER")
            return cast(Completer, found() if isinstance(found, type) else found)
        case name:
            raise SettingsError(
                f"MEMORY_TASKS_COMPLETER: unknown completer {name!r}; use offline, openai or package.module:attribute"
            )
