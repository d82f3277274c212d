"""Results of the benches: what a bar is, the table, and the JSON lines under bench-results/."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import orjson

from tests.bench.intervals import Interval

RESULTS = Path("bench-results")


@dataclass(frozen=True, kw_only=True)
class Result:
    """One figure. `bar` is the most it may be, or the least where `more_is_better`; None: reported only.

    A bar is missed only when the whole interval is on the wrong side of it: rounds on a shared machine differ
    by a third, and a bar that fails by luck is soon ignored.
    """

    name: str
    what: str
    unit: str
    figure: Interval
    bar: float | None = None
    more_is_better: bool = False
    details: Mapping[str, object] = field(default_factory=dict)

    @property
    def is_missed(self) -> bool:
        if self.bar is None:
            return False
        return self.figure.high < self.bar if self.more_is_better else self.figure.low > self.bar

    @property
    def verdict(self) -> str:
        if self.bar is None:
            return ""
        bound = "at least" if self.more_is_better else "at most"
        return f"{'MISSED' if self.is_missed else 'met'}: {bound} {number(self.bar)}"


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"


def table(results: Sequence[Result]) -> str:
    """The results in aligned columns."""
    rows = [("bench", "value", "95 % interval", "unit", "bar")]
    for r in results:
        interval = f"{number(r.figure.low)} to {number(r.figure.high)}"
        rows.append((f"{r.name}: {r.what}", number(r.figure.value), interval, r.unit, r.verdict))
    return aligned(rows)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """The first row is the columns' names."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)


def write(results: Sequence[Result]) -> Path:
    """Write a file for this run, one JSON object a line, each with the machine that it is true of."""
    now = datetime.now(UTC)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{now:%Y%m%dT%H%M%SZ}.jsonl"
    about = {"at": now.isoformat(timespec="seconds"), "machine": machine()}
    with path.open("wb") as file:
        for result in results:
            row = asdict(result) | {"is_missed": result.is_missed} | about
            file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
    return path


def machine() -> dict[str, object]:
    """What the figures depend on."""
    return {
        "cpu": cpu_name(),
        "num_cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": sys.version.split()[0],
        "load_average": os.getloadavg()[0],
    }


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
