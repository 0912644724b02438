from pathlib import Path

import pytest
from celery import Celery

from memory_tasks import Settings, SettingsError, register


def host(**options: object) -> Celery:
    app = Celery("host", broker="redis://localhost:1/0", set_as_current=False)
    app.conf.broker_transport_options = options
    return app


def test_our_tasks_are_added_and_nothing_else_is_changed() -> None:
    app, other = host(), host()
    before = dict(app.conf)
    theirs = set(app.tasks)
    register(app, settings=Settings.load())
    assert {name for name in app.tasks if name not in theirs} == {
        "memory_tasks.recall", "memory_tasks.complete", "memory_tasks.persist",
        "memory_tasks.sweep", "memory_tasks.enumerate_due", "memory_tasks.promote",
    }  # fmt: skip
    assert dict(app.conf) == before
    assert not [name for name in other.tasks if name.startswith("memory_tasks.")]


@pytest.mark.parametrize(("timeout", "refused"), [(60, True), (131, False)])
def test_a_worker_with_a_visibility_timeout_below_the_longest_step_does_not_start(
    timeout: int, refused: bool, tmp_path: Path
) -> None:
    app = host(visibility_timeout=timeout)
    register(app, settings=Settings.load(long_term_url=f"sqlite:///{tmp_path / 'memory.db'}"))
    if refused:
        with pytest.raises(SettingsError, match="visibility_timeout"):
            app.WorkController(pool="solo")
    else:
        app.WorkController(pool="solo")


@pytest.mark.parametrize("wrong", [{"completer": "nope"}, {"embedder": "nope"}, {"long_term_url": "nope"}])
def test_a_worker_with_an_unknown_part_does_not_start(wrong: dict[str, str], tmp_path: Path) -> None:
    app = host()
    register(app, settings=Settings.load(**{"long_term_url": f"sqlite:///{tmp_path / 'memory.db'}", **wrong}))
    with pytest.raises(SettingsError, match="nope"):
        app.WorkController(pool="solo")
