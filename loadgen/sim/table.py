"""The figures of simulated runs as a table for people."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from loadgen.report import render_rows
from loadgen.sim.outcomes import Figures

COLUMNS: Sequence[tuple[str, Callable[[Figures], str]]] = (
    ("policy", lambda row: row.policy),
    ("requests", lambda row: str(row.num_requests)),
    ("failed", lambda row: str(row.num_failed)),
    ("TTFT mean", lambda row: _number(row.ttft_ms.mean)),
    ("p50", lambda row: _number(row.ttft_ms.p50)),
    ("p90", lambda row: _number(row.ttft_ms.p90)),
    ("p99", lambda row: _number(row.ttft_ms.p99)),
    ("TPOT mean", lambda row: _number(row.tpot_ms.mean, 1)),
    ("p99", lambda row: _number(row.tpot_ms.p99, 1)),
    ("end to end", lambda row: _number(row.e2e_ms.mean)),
    ("hit rate", lambda row: _share(row.hit_rate)),
    ("ideal", lambda row: _share(row.ideal_hit_rate)),
    ("imbalance", lambda row: _number(row.imbalance, 2)),
)
TABLE_NOTE = (
    "times in ms of virtual time; TPOT: mean gap between a request's tokens; ideal: of one cache without\n"
    "limit; imbalance: busy time of the busiest worker over the mean"
)


def render_figures(figures: Sequence[Figures]) -> str:
    rows = [[title for title, _cell in COLUMNS]]
    rows += [[cell(each) for _title, cell in COLUMNS] for each in figures]
    return render_rows(rows)


def _number(value: float, digits: int = 0) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def _share(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1%}"
