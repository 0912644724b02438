"""What a test needs of the machine: a contributor without it gets a skip that says why, CI a failure."""

import os

import pytest


def required(found: object, otherwise: str) -> None:
    """Go on when something was found."""
    if found:
        return
    if os.environ.get("CI"):
        pytest.fail(otherwise)
    pytest.skip(otherwise)
