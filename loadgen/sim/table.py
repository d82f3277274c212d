"""The figures of simulated runs as a table for people."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from loadgen.report import render_rows
from loadgen.sim.outcomes import Figures, PoolFigures

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


POOL_COLUMNS: Sequence[tuple[str, Callable[[Figures, PoolFigures], str]]] = (
    ("policy", lambda row, _pools: row.policy),
    ("mode", lambda _row, pools: pools.mode),
    ("handed over", lambda _row, pools: _share(pools.hand_over_share)),
    ("tokens moved", lambda _row, pools: f"{pools.transferred_tokens:,}"),
    ("fell back", lambda _row, pools: str(pools.num_fallbacks)),
    ("gained", lambda _row, pools: _share(pools.gained_share)),
    ("gain", lambda _row, pools: _number(pools.gain_ms)),
    ("net", lambda _row, pools: _share(pools.net_gained_share)),
    ("lost", lambda _row, pools: _share(pools.lost_share)),
    ("loss", lambda _row, pools: _number(pools.loss_ms)),
    ("net", lambda _row, pools: _share(pools.net_lost_share)),
    ("remote", lambda _row, pools: _reasons(pools.remote)),
    ("local", lambda _row, pools: _reasons(pools.local)),
)
POOL_TABLE_NOTE = (
    "gained: hand-overs that were quicker to the first token than the decode worker alone, and by how many\n"
    "ms on average; lost: prompts computed there that a hand-over would have served sooner, and by how many\n"
    "ms; net: the same with what the decode worker's streams lose together while it computes a prompt"
)


def render_figures(figures: Sequence[Figures]) -> str:
    rows = [[title for title, _cell in COLUMNS]]
    rows += [[cell(each) for _title, cell in COLUMNS] for each in figures]
    return render_rows(rows)


def render_pools(figures: Sequence[Figures]) -> str:
    """Of runs with pools; "" where there is none."""
    pooled = [(each, each.pools) for each in figures if each.pools]
    if not pooled:
        return ""
    rows = [[title for title, _cell in POOL_COLUMNS]]
    rows += [[cell(each, pools) for _title, cell in POOL_COLUMNS] for each, pools in pooled]
    return f"{render_rows(rows)}\n{POOL_TABLE_NOTE}"


def _reasons(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in counts.items()) or "-"


def _number(value: float, digits: int = 0) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def _share(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1%}"
