"""Breaks everything and counts what is left: `make chaos`, or `python -m tests.chaos --short`.

Exit code 1 unless nothing was lost, doubled, billed twice, out of order or brought back.
"""

import argparse
import secrets
import sys
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.table import Table

from tests.chaos import failures, kills, ordering, promotion, servers
from tests.chaos.harness import Outcome

Scenario = Callable[[int], Iterator[Outcome]]


def scenarios(*, short: bool) -> dict[str, Scenario]:
    """All scenarios by name, in full or in a size for the test suite."""
    return {
        "random-kills": lambda seed: kills.random_kills(seed, *((5, 10, 60) if short else (200, 50, 2000))),
        "boundary-kills": lambda seed: kills.boundary_kills(seed, 1 if short else 20),
        "redis-restarts": lambda seed: servers.redis_restarts(seed, *((2, 1) if short else (6, 3))),
        "redis-frozen": lambda seed: servers.redis_frozen(seed, 2 if short else 10),
        "network-cut": lambda seed: servers.network_cut(seed, 5 if short else 30),
        "rabbitmq-restarts": lambda seed: servers.rabbitmq_restarts(seed, *((1, 1) if short else (4, 3))),
        "store-down": lambda seed: failures.store_down(seed, 1 if short else 30),
        "store-dead": lambda seed: failures.store_dead(seed, 10 if short else 50),
        "store-flaky": lambda seed: failures.store_flaky(seed, 30 if short else 300),
        "model-failures": lambda seed: failures.model_failures(seed, 2 if short else 10),
        "same-instant": lambda seed: ordering.same_instant(seed, 20 if short else 1000),
        "long-mailbox": lambda seed: ordering.long_mailbox(seed, *((60, 10, 3) if short else (1000, 50, 10))),
        "backlog": lambda seed: ordering.backlog(seed, 100 if short else 5000),
        "promoter-kills": lambda seed: promotion.promoter_kills(seed, 1 if short else 20),
        "many-promoters": lambda seed: promotion.many_promoters(seed, 100 if short else 2000),
        "append-in-between": lambda seed: promotion.append_in_between(seed, 3 if short else 20),
        "forget-while-running": lambda seed: promotion.forget_while_running(seed, 30 if short else 1000),
        "wrong-clock": lambda seed: ordering.wrong_clock(seed, 2 if short else 15),
    }


def main(arguments: list[str]) -> int:
    """Run the scenarios and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="scenario", help=", ".join(scenarios(short=True)))
    parser.add_argument("--short", action="store_true", help="small sizes: under two minutes")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(100_000), help="of all choices")
    given = parser.parse_args(arguments)
    known = scenarios(short=given.short)
    if unknown := set(given.names) - set(known):
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    console = Console(width=150)
    console.print(f"seed {given.seed}")
    outcomes: list[Outcome] = []
    for name in given.names or known:
        started = time.monotonic()
        console.print(f"{name} ...", style="dim")
        for outcome in known[name](given.seed):
            outcome.seconds = time.monotonic() - started
            outcomes.append(outcome)
            console.print(_table([outcome]))
    console.print(_table(outcomes))
    return 0 if all(outcome.held for outcome in outcomes) else 1


def _table(outcomes: list[Outcome]) -> Table:
    table = Table(box=None)
    columns = (
        "trials",
        "turns",
        "lost",
        "doubled",
        "extra calls",
        "killed in call",
        "disorder",
        "resurrected",
        "seconds",
    )
    table.add_column("scenario")
    for column in columns:
        table.add_column(column, justify="right")
    table.add_column("")
    for o in outcomes:
        numbers = (
            o.trials,
            o.turns,
            o.lost,
            o.doubled,
            o.extra_calls,
            o.calls_killed,
            o.disorder,
            o.resurrected,
            round(o.seconds),
        )
        table.add_row(o.scenario, *(str(number) for number in numbers), "held" if o.held else "BROKEN")
        for note in o.notes:
            table.add_row(f"    {note}", style="dim")
    return table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
