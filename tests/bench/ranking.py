"""Several gateways under the same load: which is cheapest, as far as the rounds can tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from tests.bench.intervals import difference_of_medians
from tests.bench.report import aligned, number

OURS, YARDSTICK = "kvgate", "nginx"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One load. `rounds`: by gateway, nginx and kvgate among them, what each round took; less is better."""

    name: str
    unit: str
    rounds: Mapping[str, Sequence[float]]

    def cell(self, name: str) -> str:
        """The median, and how it compares with nginx's."""
        if name not in self.rounds:
            return "-"
        value, yardstick = median(self.rounds[name]), median(self.rounds[YARDSTICK])
        return f"{number(value)} ({value / yardstick:.2f})" if yardstick > 0 else number(value)

    @property
    def verdict(self) -> str:
        """kvgate against the best of the others, nginx aside: better or worse only where the whole interval
        of the difference says so."""
        others = {name: median(r) for name, r in self.rounds.items() if name not in (OURS, YARDSTICK)}
        if not others:
            return ""
        best = min(others, key=others.__getitem__)
        difference = difference_of_medians(self.rounds[OURS], self.rounds[best])
        if difference.high < 0:
            return "kvgate is best"
        if difference.low > 0:
            return f"{best} is better by {number(difference.value)}"
        return f"even with {best}"


def table(rows: Sequence[Row]) -> str:
    """In aligned columns; in brackets multiples of nginx."""
    names = list(dict.fromkeys(name for row in rows for name in row.rounds))
    lines = [("row", "unit", *names, "verdict")]
    lines += [(row.name, row.unit, *map(row.cell, names), row.verdict) for row in rows]
    return aligned(lines)
