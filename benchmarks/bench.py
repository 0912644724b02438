"""Measures us against the bare floor in one run: `make bench`, or `python -m benchmarks.bench replies`."""

import sys
import tempfile
from pathlib import Path

from benchmarks import promotion, recall, replies, scaling, stores, streams, working
from benchmarks.report import Report
from workers.valkey import EmbeddedValkey

PARTS = {
    "replies": replies.run,
    "promotion": promotion.run,
    "working": working.run,
    "streams": streams.run,
    "stores": stores.run,
    "recall": recall.run,
}
ON_DEMAND = {"scaling": scaling.run}
"""Takes half an hour, so it runs only when it is named."""


def main(names: list[str]) -> int:
    """Print the table; 1 when a bound is missed."""
    report = Report()
    for name in names or PARTS:
        with (
            tempfile.TemporaryDirectory(prefix="memory-tasks-bench-") as folder,
            EmbeddedValkey(Path(folder) / "valkey") as valkey,
        ):
            (PARTS | ON_DEMAND)[name](Path(folder), valkey, report)
    report.show()
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
