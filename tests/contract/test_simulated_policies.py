"""Policies on the Mooncake traces against figures of another simulator of the same engine.

That one is written in C++ and accounts memory in tokens, not in blocks of 512; the engine's formulas, the
arrivals (smeared by chance over their steps of 3 s) and the router's knowledge are the same. Its figures are
means of three seeds; here one seed must come within a tenth of what it found, and ratios must have their
sign.
"""

from __future__ import annotations

import random
from functools import cache

import pytest

from loadgen.sim.outcomes import Figures
from loadgen.trace_files import read_any_trace
from loadgen.traces import Trace
from tests.support.data import data_path
from tests.support.simulations import compared, repeated

KV_32 = "kv,prefill_load_scale=32"
NUM_TOOL_HEAD_IDS = 79
"""Ids of the heads that tool agents' prompts have in common are below."""
CONVERSATION_RATE = 7.6
"""Requests a second that 8 workers of the 70B engine can just serve."""


@cache
def conversation() -> Trace:
    return read_any_trace(data_path("traces/mooncake-conversation"), random.Random(0))


@cache
def tool_agents() -> Trace:
    trace = read_any_trace(data_path("traces/mooncake-toolagent-head"), random.Random(0))
    return repeated(trace, 6, NUM_TOOL_HEAD_IDS)


@cache
def at(share: float, policy: str, **settings: float) -> Figures:
    """Conversations at that share of the capacity."""
    return compared(conversation(), policy, rate=share * CONVERSATION_RATE, **settings)


# policy, TTFT in ms and hit rate at 70 % of capacity
@pytest.mark.parametrize(
    ("policy", "ttft", "hit_rate"),
    [
        ("round_robin", 2751, 0.061),
        ("least_loaded", 1415, 0.060),
        ("kv", 947, 0.109),
        (KV_32, 786, 0.138),
    ],
)
def test_conversations_at_seven_tenths_of_capacity(policy: str, ttft: float, hit_rate: float) -> None:
    found = at(0.7, policy)
    assert found.ttft_ms.mean == pytest.approx(ttft, rel=0.1)
    assert found.hit_rate == pytest.approx(hit_rate, abs=0.01)
    assert found.imbalance < 1.15
    assert found.num_failed == 0


@pytest.mark.parametrize(
    ("policy", "ttft", "tpot", "e2e"),
    [("round_robin", 1478, 33.0, 11_900), ("kv", 835, 31.6, 10_400), (KV_32, 742, 27.9, 10_000)],
)
def test_conversations_at_half_of_capacity(policy: str, ttft: float, tpot: float, e2e: float) -> None:
    found = at(0.5, policy)
    assert found.ttft_ms.mean == pytest.approx(ttft, rel=0.1)
    assert found.tpot_ms.mean == pytest.approx(tpot, rel=0.1)
    assert found.e2e_ms.mean == pytest.approx(e2e, rel=0.1)


def test_blind_policies_are_behind() -> None:
    least, chance, two = (at(0.7, policy) for policy in ("least_loaded", "random", "power_of_two"))
    assert _ratio(chance, least) > 2.0
    assert 1.1 < _ratio(two, least) < 1.6


def test_tool_agents() -> None:
    by_kv, by_kv_32, by_turn = (
        compared(tool_agents(), policy, rate=8.75) for policy in ("kv", KV_32, "round_robin")
    )
    assert by_kv_32.ideal_hit_rate == pytest.approx(0.391, abs=0.03)
    assert by_kv_32.hit_rate >= 0.9 * 0.391
    assert by_kv_32.ttft_ms.mean == pytest.approx(493, rel=0.1)
    assert by_kv.ttft_ms.mean == pytest.approx(643, rel=0.1)
    assert _ratio(by_turn, by_kv_32) > 3


def test_a_closed_loop_of_tool_agents() -> None:
    """TPOT and end to end as found there."""
    by_turn, by_kv = (compared(tool_agents(), policy, concurrency=32) for policy in ("round_robin", KV_32))
    assert by_turn.tpot_ms.mean == pytest.approx(27.7, rel=0.1)
    assert by_kv.tpot_ms.mean == pytest.approx(25.8, rel=0.1)
    assert by_turn.e2e_ms.mean == pytest.approx(6400, rel=0.1)
    assert by_kv.e2e_ms.mean == pytest.approx(5400, rel=0.1)


def test_own_decisions_bridge_the_delay_of_events() -> None:
    soon, late = at(0.7, KV_32), at(0.7, KV_32, event_delay=0.5)
    assert _ratio(late, soon) == pytest.approx(1.0, abs=0.02)
    assert late.e2e_ms.mean == pytest.approx(soon.e2e_ms.mean, rel=0.02)


def _ratio(one: Figures, other: Figures) -> float:
    return one.ttft_ms.mean / other.ttft_ms.mean
