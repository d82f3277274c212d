"""`python -m tests.bench`: every bench, one table, JSON lines in bench-results/; exit 1 when a bar is missed.

`--quick` runs few rounds, for a look while working; `--only NAME` (repeatable) runs some of them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from statistics import median

from tests.bench import decision, intake, latency, lookup, relay, report
from tests.bench.intervals import median_interval
from tests.bench.report import Result
from tests.bench.workloads import WORKLOADS

Say = Callable[[str], None]

NUM_ROUNDS = 11
DECISION_BAR = 500.0  # microseconds, hashing included
INTAKE_BAR = 600_000  # blocks a second on one core
LOOKUP_BAR = 150.0  # microseconds
LEAVING_BAR = 20.0  # milliseconds


def relay_of(workload: str) -> Callable[[bool, Say], list[Result]]:
    return lambda quick, say: relay.run(workload, quick=quick, say=say)


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


def index_lookup(quick: bool, say: Say) -> list[Result]:
    say("lookup: 512 blocks among 128 workers")
    return [
        Result(
            name="lookup",
            what=f"512 blocks among 128 workers, {case}",
            unit="µs",
            figure=median_interval(micros),
            bar=LOOKUP_BAR if case in lookup.WITH_BAR else None,
            details={"micros": micros},
        )
        for case, micros in lookup.samples(3 if quick else NUM_ROUNDS).items()
    ]


def index_leaving(quick: bool, say: Say) -> list[Result]:
    say("worker leaves: a million blocks")
    pauses = [lookup.longest_pause_ms() for _ in range(1 if quick else 3)]
    return [
        Result(
            name="worker leaves",
            what="the longest pause, a million blocks",
            unit="ms",
            figure=median_interval(pauses),
            bar=LEAVING_BAR,
            details={"milliseconds": pauses},
        )
    ]


def decisions(quick: bool, say: Say) -> list[Result]:
    say("decision: 8, 32 and 128 workers in turn")
    taken = decision.samples(3 if quick else NUM_ROUNDS)
    return [decision_result(name, [route for route, _ in pairs]) for name, pairs in taken.items()]


def decision_result(case: str, micros: list[float]) -> Result:
    per_round = decision.DECISIONS_PER_ROUND
    rounds = [median(micros[i : i + per_round]) for i in range(0, len(micros), per_round)]
    return Result(
        name="decision",
        what=f"8,192 tokens, {case.replace('_', ' ')} workers",
        unit="µs",
        figure=median_interval(rounds),
        bar=DECISION_BAR if case == "hot_with_hashing_32" else None,
        details={"micros": rounds},
    )


BENCHES: dict[str, Callable[[bool, Say], list[Result]]] = {
    **{name: relay_of(name) for name in WORKLOADS},
    "latency": latency.alone,
    "leaving": latency.leaving,
    "decision": decisions,
    "intake": event_intake,
    "lookup": index_lookup,
    "worker_leaves": index_leaving,
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
