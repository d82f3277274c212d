"""`python -m tests.bench`: every bench, one table, JSON lines in bench-results/; exit 1 when a bar is missed.

`--quick` runs few rounds, for a look while working; `--only NAME` (repeatable) runs some of them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from tests.bench import relay, report
from tests.bench.report import Result
from tests.bench.workloads import WORKLOADS

Say = Callable[[str], None]


def relay_of(workload: str) -> Callable[[bool, Say], list[Result]]:
    return lambda quick, say: relay.run(quick=quick, say=say, only=[workload])


BENCHES: dict[str, Callable[[bool, Say], list[Result]]] = {name: relay_of(name) for name in WORKLOADS}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__, allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help="few rounds: a look, not a verdict")
    parser.add_argument(
        "--only", action="append", choices=sorted(BENCHES), help="a bench to run (repeatable)"
    )
    arguments = parser.parse_args()
    results: list[Result] = []
    for name in arguments.only or BENCHES:
        results += BENCHES[name](arguments.quick, progress)
    progress("")
    sys.stdout.write(f"{report.table(results)}\n\nwritten to {report.write(results)}\n")
    return int(any(result.is_missed for result in results))


def progress(text: str) -> None:
    """One line that is written over, on terminals only."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
