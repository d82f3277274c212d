"""`python -m tests.bench`: every bench, one table, JSON lines in bench-results/; exit 1 when a bar is missed.

`--quick` runs few rounds, for a look while working; `--only NAME` (repeatable) runs some of them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from tests.bench import intake, relay, report
from tests.bench.intervals import median_interval
from tests.bench.report import Result
from tests.bench.workloads import WORKLOADS

Say = Callable[[str], None]

NUM_ROUNDS = 11
INTAKE_BAR = 500_000  # blocks a second on one core


def relay_of(workload: str) -> Callable[[bool, Say], list[Result]]:
    return lambda quick, say: relay.run(quick=quick, say=say, only=[workload])


def event_intake(quick: bool, say: Say) -> list[Result]:
    results = []
    for blocks, tokens in intake.SHAPES:
        say(f"intake: {blocks} blocks of {tokens} tokens an event")
        rates = intake.blocks_per_second(blocks, tokens, 3 if quick else NUM_ROUNDS)
        results.append(
            Result(
                name="intake",
                what=f"KV events of {blocks} blocks of {tokens} tokens",
                unit="blocks/s",
                figure=median_interval(rates),
                bar=INTAKE_BAR if (blocks, tokens) == intake.SHAPES[0] else None,
                more_is_better=True,
                details={"blocks_per_second": rates},
            )
        )
    return results


BENCHES: dict[str, Callable[[bool, Say], list[Result]]] = {
    **{name: relay_of(name) for name in WORKLOADS},
    "intake": event_intake,
}


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
