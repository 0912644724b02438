"""Finds what a setting names as "package.module:attribute"."""

import importlib
from typing import Any

from memory_tasks.errors import SettingsError


def import_attribute(path: str, setting: str) -> Any:
    """The object at "package.module:attribute".

    Raises:
        SettingsError: Says which setting is wrong and what is missing.
    """
    module_name, _, attribute = path.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for name in attribute.split("."):
            found = getattr(found, name)
    except ImportError as error:
        raise SettingsError(f"{setting}: can't import {module_name!r} ({error})") from error
    except AttributeError as error:
        raise SettingsError(f"{setting}: {module_name!r} has no {attribute!r}") from error
    return found


def needs_extra(extra: str, setting: str) -> SettingsError:
    """The error for a setting whose optional dependency is not installed."""
    return SettingsError(f"{setting} needs an extra that is not installed: pip install 'memory-tasks[{extra}]'")
