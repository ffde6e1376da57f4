"""The table of README.md, in some three minutes on a quiet machine: ``python -m benchmarks.readme`` (`make figures`) writes it there.

A start is measured once for each number of workers, a killed worker three times and a test ten times; the table has medians.
`startup`, `restart` and `testing` measure the same things more often, with other launchers beside orch.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Iterable
from importlib.metadata import packages_distributions, version

from benchmarks import restart, startup, testing
from benchmarks.measure import ROOT, fill, load

COUNTS = (2, 8)
KILLED_OF = 4


def seconds(values: Iterable[float]) -> str:
    """The median, with the digits that mean something."""
    median = statistics.median(values)
    return f"{median:.1f}" if median >= 1 else f"{median:.2f}"


def starts(rounds: int) -> list[str]:
    """Rows: from the command to the first all-reduce in every worker."""
    with startup.kept_warm() as warm:
        ways = {startup.BASE: startup.Way(startup.shell_loop), startup.COLD: startup.Way(startup.orch_up), "warm": warm}
        taken = startup.measure_all(ways, list(COUNTS), rounds, 0)
    cells = {count: [seconds(figures.wall_s[count]) for figures in taken.values()] for count in COUNTS}
    return [f"| start {count} workers, up to their first all-reduce | {' | '.join(row)} |" for count, row in cells.items()]


def killed(rounds: int) -> str:
    found = [taken for _ in range(rounds) for taken in restart.measure(restart.orch, KILLED_OF, KILLED_OF)]
    text = seconds(found) if len(found) == rounds else "failed"
    return f"| restart, after one of {KILLED_OF} workers was killed | like a start | {text} | - |"


def tested(rounds: int) -> str:
    with testing.all_ways([testing.FRESH, "subprocess"]) as ways:
        for way in ways.values():
            way.test()  # which imports TensorFlow, or reads it from the disk
        alone = seconds([ways["subprocess"].test()])
        fresh = seconds(ways[testing.FRESH].test() for _ in range(rounds))
    return f"| run one test with two new workers (the first test also imports TensorFlow) | {alone} | {fresh} | - |"


def head() -> str:
    where = f"Python {platform.python_version()}, TensorFlow {version(packages_distributions()['tensorflow'][0])}, {os.cpu_count()} cores"
    columns = "| seconds to … | shell loop | `orch up` | `orch up` after `orch warm start` |\n|---|---|---|---|\n"
    return f"Taken by `make figures` on {time.strftime('%Y-%m-%d')}: {where}; {load().partition(' on ')[0]} at the beginning.\n\n{columns}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round of everything")
    rounds = 1 if parser.parse_args().quick else 3
    text = head()
    rows = [*starts(1), killed(rounds), tested(3 * rounds + 1)]
    fill(ROOT / "README.md", "figures", text + "".join(f"{row}\n" for row in rows))


if __name__ == "__main__":
    main()
