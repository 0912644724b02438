"""The short form of `make chaos`: every scenario once, with real kills and restarts."""

import shutil

import pytest

from tests.chaos.__main__ import scenarios
from tests.rabbitmq import required_rabbitmq
from tests.requirements import required


@pytest.mark.parametrize("name", scenarios(short=True))
def test_nothing_is_lost_doubled_paid_twice_or_out_of_order(name: str) -> None:
    if name.startswith("rabbitmq"):
        required_rabbitmq()
    if name == "wrong-clock":
        required(shutil.which("faketime"), "faketime is not installed: apt-get install faketime")
    for outcome in scenarios(short=True)[name](7):
        assert outcome.turns > 0
        assert outcome.held, outcome
