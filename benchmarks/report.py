"""How a benchmark measures and reports: ratios against a floor of the same run."""

import statistics
import time
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table


def interleaved(times: int, *acts: Callable[[], object], quantile: int = 50) -> list[float]:
    """Median (or another percentile) in ms of several actions that take turns, so that a slow minute hits them all."""
    taken: list[list[float]] = [[] for _ in acts]
    for _ in range(times):
        for act, mine in zip(acts, taken, strict=True):
            started = time.perf_counter()
            act()
            mine.append((time.perf_counter() - started) * 1000)
    return [statistics.quantiles(mine, n=100)[quantile - 1] for mine in taken]


class Report:
    """A table of ratios and whether each is within its bound."""

    def __init__(self) -> None:
        self._table = Table("what", "floor", "ours", "ratio", "bound", "", box=None)
        self._tables: list[Table] = []
        self.failed = 0

    def add(self, what: str, floor: float, ours: float, bound: float, unit: str, *, at_least: bool = False) -> None:
        """Add a line; a bound of 0 only shows the numbers."""
        ratio = ours / floor
        held = not bound or (ratio >= bound if at_least else ratio <= bound)
        self.failed += not held
        sign = ">=" if at_least else "<="
        self._table.add_row(
            what, f"{floor:.2f} {unit}", f"{ours:.2f} {unit}", f"{ratio:.2f}", f"{sign} {bound:g}" if bound else "",
            "" if not bound else "held" if held else "MISSED",
        )  # fmt: skip

    def note(self, what: str, value: str) -> None:
        """Add a number without a floor."""
        self._table.add_row(what, "", value, "", "", "")

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Add a table of its own, shown before the ratios."""
        table = Table(*columns, title=title, title_justify="left", box=None)
        for row in rows:
            table.add_row(*row)
        self._tables.append(table)

    def count(self, what: str, number: int, detail: str) -> None:
        """Add a number that has to be 0."""
        self.failed += number > 0
        self._table.add_row(what, "", f"{number} ({detail})", "", "0", "MISSED" if number else "held")

    def show(self) -> None:
        """Print it."""
        Console(width=120).print(*self._tables, self._table, sep="\n\n")
