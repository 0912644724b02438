from beat_schedule import beat_schedule
from memory_tasks import Settings
from memory_tasks.tasks.publisher import QUEUES


def test_every_entry_expires_within_its_interval_and_has_a_queue() -> None:
    entries = beat_schedule(Settings.load(sweep_interval=2, promote_interval=60))
    assert {name: entry["schedule"] for name, entry in entries.items()} == {
        "memory_tasks.sweep": 2,
        "memory_tasks.enumerate_due": 60,
    }
    for name, entry in entries.items():
        assert entry["options"]["expires"] <= entry["schedule"]
        assert entry["options"]["queue"] == QUEUES[name]
