import pytest

from memory_tasks import SettingsError
from memory_tasks.connection import connect, without_password


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://db:6379/0", "redis://db:6379/0"),
        ("redis://:secret@db/0", "redis://:***@db/0"),
        ("rediss://app:secret@db:1/2?password=secret", "rediss://app:***@db:1/2"),
        ("amqp://guest@mq//", "amqp://guest@mq//"),
    ],
)
def test_a_password_is_never_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        "http://app:secret@db",
        "redis://db:port/0",
        "redis+cluster://app:secret@db",
        "redis+other://db:1",
        "redis+sentinel://app:secret@db:1",
        "redis+sentinel://db:1/service?password=secret",
    ],
)
def test_a_url_nobody_understands_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="MEMORY_TASKS_REDIS_URL") as failure:
        connect(url)
    assert "secret" not in str(failure.value)
