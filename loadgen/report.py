"""Figures as text: one table for people, one list for programs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from loadgen.compare import Summary

Column = tuple[str, Callable[[Summary], str]]

COLUMNS: Sequence[Column] = (
    ("policy", lambda row: row.name),
    ("requests", lambda row: str(row.num_requests)),
    ("errors", lambda row: str(row.num_errors)),
    ("TTFT mean", lambda row: _ms(row.ttft_mean)),
    ("95 % interval", lambda row: "..".join(map(_ms, row.ttft_mean_interval))),
    ("TTFT p50", lambda row: _ms(row.ttft_p50)),
    ("TTFT p99", lambda row: _ms(row.ttft_p99)),
    ("ITL p50", lambda row: _ms(row.itl_p50, 1)),
    ("ITL p99", lambda row: _ms(row.itl_p99, 1)),
    ("hit rate", lambda row: "-" if math.isnan(row.hit_rate) else f"{row.hit_rate:.1%}"),
    ("balance", lambda row: _ratio(row.request_balance)),
    ("prefill", lambda row: _ratio(row.prefill_balance)),
)
TABLE_NOTE = (
    "times in ms as measured; hit rate by the workers' own cached_tokens (- where they tell none); last two\n"
    "columns: the busiest worker over the mean, in requests and in prefill tokens"
)


def render_table(summaries: Sequence[Summary]) -> str:
    """Times in milliseconds; balance is the busiest worker over the mean."""
    rows = [[title for title, _cell in COLUMNS]]
    rows += [[cell(summary) for _title, cell in COLUMNS] for summary in summaries]
    return render_rows(rows)


def render_rows(rows: Sequence[Sequence[str]]) -> str:
    """Aligned, the first row underlined: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [_line(row, widths) for row in rows]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def as_json(summaries: Sequence[Summary]) -> list[dict[str, Any]]:
    """One object a summary; what was not measured is None."""
    return [
        {
            key: None if isinstance(value, float) and math.isnan(value) else value
            for key, value in dataclasses.asdict(summary).items()
        }
        for summary in summaries
    ]


def progress_line(label: str, done: int, total: int, seconds: float, width: int = 30) -> str:
    filled = width * done // max(1, total)
    return f"{label:<12} [{'#' * filled}{'.' * (width - filled)}] {done}/{total} requests, {seconds:.0f} s"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = (
        cell.ljust(width) if i == 0 else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join([first, *others]).rstrip()


def _ms(value: float, digits: int = 0) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def _ratio(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"
