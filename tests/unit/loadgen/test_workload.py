"""The synthetic workload has the figures of the Mooncake conversation trace (its first 8,000 requests)."""

from __future__ import annotations

import random

import pytest

from loadgen.traces import BLOCK_TOKENS, hit_rate_dealt, statistics_of
from loadgen.workload import INPUT_TOKENS_MAX, REQUESTS_PER_SECOND, SHARED_BLOCK, synthesize


@pytest.fixture(scope="module")
def whole():
    return synthesize(8000, random.Random(1))


def test_lengths_and_reuse_as_in_the_trace(whole):
    statistics = statistics_of(whole)
    assert statistics.mean_input_tokens == pytest.approx(12_396, rel=0.10)
    assert statistics.median_input_tokens == pytest.approx(7219, rel=0.10)
    assert statistics.mean_output_tokens == pytest.approx(347, rel=0.05)
    assert statistics.ideal_hit_rate == pytest.approx(0.358, abs=0.04)
    assert statistics.follow_up_share == pytest.approx(0.315, abs=0.03)
    assert hit_rate_dealt(whole, 4) == pytest.approx(0.184, abs=0.03)


def test_deeper_sharing_than_the_first_block(whole):
    seen, deeper = set(), 0
    for request in whole:
        deeper += request.hash_ids[:2][-1] in seen and len(request.hash_ids) > 1
        seen.update(request.hash_ids)
    assert deeper / len(whole) == pytest.approx(0.372, abs=0.05)


def test_arrivals_as_in_the_trace(whole):
    arrivals = [request.arrival_seconds for request in whole]
    assert arrivals == sorted(arrivals)
    assert arrivals[0] == 0.0
    assert len(whole) / arrivals[-1] == pytest.approx(REQUESTS_PER_SECOND, rel=0.05)
    windows = sorted(sum(start <= at < start + 10 for at in arrivals) for start in range(0, 2000, 10))
    assert windows[20] == pytest.approx(22, abs=4)
    assert windows[-20] == pytest.approx(44, abs=4)


def test_a_short_workload_has_the_reuse_of_the_whole():
    rates = [statistics_of(synthesize(600, random.Random(seed))).ideal_hit_rate for seed in range(20)]
    assert sum(rates) / len(rates) == pytest.approx(0.358, abs=0.04)


def test_requests_are_well_formed(whole):
    for request in whole:
        assert request.hash_ids[0] == SHARED_BLOCK
        assert len(request.hash_ids) == -(-request.input_tokens // BLOCK_TOKENS)
        assert 1 <= request.input_tokens <= INPUT_TOKENS_MAX
        assert 1 <= request.output_tokens <= 2000


def test_an_id_has_one_predecessor(whole):
    predecessors = {}
    for request in whole:
        for before, hash_id in zip([None, *request.hash_ids], request.hash_ids, strict=False):
            assert predecessors.setdefault(hash_id, before) == before


def test_the_seed_decides():
    assert synthesize(50, random.Random(3)) == synthesize(50, random.Random(3))
    assert synthesize(50, random.Random(3)) != synthesize(50, random.Random(4))
