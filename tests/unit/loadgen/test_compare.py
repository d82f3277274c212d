"""Figures of a run, counted by hand, and the table that shows them."""

from __future__ import annotations

import io
import math
import random

import pytest

from loadgen.compare import balance, bootstrap_interval, mean, percentile, summarize
from loadgen.console import Console
from loadgen.report import as_json, progress_line, render_table
from loadgen.results import RequestResult


def result(worker="a", ttft=0.1, prompt=100, cached=0, gaps=(0.01,), error=None, late=0.0):
    return RequestResult(
        id="r", worker=worker, ttft=ttft, prompt_tokens=prompt, cached_tokens=cached, token_gaps=list(gaps),
        error=error, late=late,
    )  # fmt: skip


RESULTS = [
    result("a", 0.1, cached=80, gaps=(0.01, 0.03)),
    result("b", 0.2, cached=0, gaps=(0.02,)),
    result("b", 0.6, cached=20, late=0.004),
    result(error="status 503", ttft=None, prompt=0, gaps=()),
]


def test_summary():
    summary = summarize("kv", RESULTS, 2, random.Random(1))
    assert (summary.num_requests, summary.num_errors) == (4, 1)
    assert summary.ttft_mean == pytest.approx(300)
    assert (summary.ttft_p50, summary.ttft_p99) == (pytest.approx(200), pytest.approx(600))
    assert (summary.itl_p50, summary.itl_p99) == (pytest.approx(20), pytest.approx(30))
    assert summary.hit_rate == pytest.approx(100 / 300)
    assert summary.request_balance == pytest.approx(2 * 2 / 3)
    assert summary.prefill_balance == pytest.approx(180 * 2 / 200)
    assert summary.late_max == pytest.approx(4)


def test_nothing_measured_is_nan_and_shown_as_a_dash():
    summary = summarize("random", [result(error="refused", ttft=None)], 2, random.Random(1))
    assert math.isnan(summary.ttft_mean)
    assert math.isnan(summary.hit_rate)
    assert as_json([summary])[0]["ttft_mean"] is None
    assert " - " in render_table([summary]).splitlines()[2]


def test_engines_that_report_cached_tokens_leave_a_zero_out():
    results = [result(cached=50), result(cached=None)]
    assert summarize("kv", results, 2, random.Random(1)).hit_rate == pytest.approx(50 / 200)


@pytest.mark.parametrize("prompt", [100, None])
def test_no_cached_tokens_told_no_hit_rate(prompt):
    summary = summarize("kv", [result(prompt=prompt, cached=None)] * 2, 2, random.Random(1))
    assert summary.num_errors == 0
    assert math.isnan(summary.hit_rate)
    assert math.isnan(summary.prefill_balance)


def test_no_worker_named_no_balance():
    assert math.isnan(balance([result(worker="")], 2, lambda _result: 1))


def test_percentile_is_a_value_that_was_seen():
    assert percentile([1, 2, 3, 4], 0.5) == 3
    assert percentile([1], 0.99) == 1
    assert math.isnan(percentile([], 0.5))


def test_interval_holds_the_mean_and_shrinks_with_more_values():
    few = [1.0, 2.0, 3.0, 10.0]
    low, high = bootstrap_interval(few, mean, random.Random(1))
    assert low < mean(few) < high
    low_many, high_many = bootstrap_interval(few * 50, mean, random.Random(1))
    assert high_many - low_many < (high - low) / 3


def test_table_has_a_row_for_each_policy():
    table = render_table([summarize(name, RESULTS, 2, random.Random(1)) for name in ("random", "kv")])
    header, rule, first, second = table.splitlines()
    assert header.split()[:3] == ["policy", "requests", "errors"]
    assert set(rule) == {"-", " "}
    assert first.split()[:4] == ["random", "4", "1", "300"]
    assert "33.3%" in second
    assert len(header) == len(rule)


def test_progress():
    assert progress_line("kv", 5, 10, 2.4, width=4) == "kv           [##..] 5/10 requests, 2 s"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_console_draws_a_bar_on_a_terminal_and_sparse_lines_elsewhere():
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        console = Console(stream)
        for done in range(1, 9):
            console.progress(f"{done} of 8", done, 8)
        console.line("end")
    assert terminal.getvalue().count("\r") == 8 + 2
    assert file.getvalue().splitlines() == ["2 of 8", "4 of 8", "6 of 8", "8 of 8", "end"]
