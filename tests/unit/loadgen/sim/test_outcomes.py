from __future__ import annotations

import math

import pytest

from loadgen.sim.outcomes import RequestOutcome, Run, figures_of
from loadgen.sim.table import render_figures
from tests.support.simulations import trace_of

TRACE = trace_of((0.0, 128, 5, [1, 2]), (1.0, 128, 1, [1, 2]), (2.0, 64, 2, [1]))
FIELDS = [
    "policy", "trace", "num_workers", "seed", "num_requests", "ttft_ms", "tpot_ms", "e2e_ms", "hit_rate",
    "ideal_hit_rate", "imbalance", "simulated_s", "wall_s",
]  # fmt: skip


def figures(outcomes, warm_up=0.0):
    run = Run(outcomes, [3.0, 1.0], 9.0)
    return figures_of(run, TRACE, policy="kv", name="t", seed=4, wall_seconds=0.5, warm_up=warm_up)


OUTCOMES = [
    RequestOutcome(0.0, 128, 5, first_token_at=0.5, ended_at=0.9),
    RequestOutcome(1.0, 128, 1, first_token_at=1.1, ended_at=1.1, cached_tokens=64),
    RequestOutcome(2.0, 64, 2, first_token_at=2.5, ended_at=None),
]


def test_by_hand():
    found = figures(OUTCOMES)
    assert (found.num_requests, found.num_failed) == (3, 1)
    assert found.ttft_ms.mean == pytest.approx(300)
    assert found.tpot_ms.mean == pytest.approx(100), "a single token has no gap"
    assert found.e2e_ms.p99 == pytest.approx(900)
    assert found.hit_rate == pytest.approx(64 / 256)
    assert found.ideal_hit_rate == pytest.approx(192 / 320)
    assert found.imbalance == pytest.approx(1.5)


def test_what_came_while_caches_were_empty_can_be_left_out():
    assert figures(OUTCOMES, warm_up=0.34).hit_rate == pytest.approx(0.5)


def test_json_has_exactly_the_documented_fields():
    as_json = figures(OUTCOMES).as_json()
    assert list(as_json) == FIELDS
    assert list(as_json["ttft_ms"]) == ["mean", "p50", "p90", "p99"]


def test_nothing_measured_is_told_as_such():
    found = figures([RequestOutcome(0.0, 128, 5)] * 3)
    assert found.as_json()["ttft_ms"]["mean"] is None
    assert math.isnan(found.hit_rate)
    assert "-" in render_figures([found])
