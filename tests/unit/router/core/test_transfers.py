"""Transfer times as they are learnt, and both ways compared."""

import pytest

from policies.engine_time import PrefillTime, StepTime
from router.core.limits import TRANSFER_PRIOR, TRANSFER_SECONDS
from router.core.transfers import Received, Side, TransferTimes, WorkerTimes, forecast

IDLE = WorkerTimes(0.0, PrefillTime(10.0, 0.1, 0.0), StepTime(8.0, 0.5, 0.0), 0, 0)


def taught(ms_of, now=100.0):
    times = TransferTimes()
    for i in range(40):
        tokens = 500.0 + 700.0 * (i % 7)
        began_at = now + i
        times.observe(Received(tokens, "nixl", began_at), 5.0, began_at + (ms_of(tokens) + 5.0) / 1000)
    return times, now + 40


def test_before_any_hand_over_the_prior_stands():
    base, token, _ = TRANSFER_PRIOR
    assert TransferTimes().of("nixl", 1_000, 0.0) == base + 1_000 * token


def test_a_slow_network_is_learnt_and_each_protocol_by_itself():
    times, now = taught(lambda tokens: 20 + 1.05 * tokens)
    assert times.of("nixl", 2_000, now) == pytest.approx(20 + 1.05 * 2_000, rel=0.25)
    assert times.of("sglang", 2_000, now) == TransferTimes().of("sglang", 2_000, now)


def test_what_was_learnt_relaxes_so_that_hand_overs_are_tried_again():
    times, now = taught(lambda tokens: 20 + 1.05 * tokens)
    prior = TransferTimes().of("nixl", 2_000, now)
    later = times.of("nixl", 2_000, now + 10 * TRANSFER_SECONDS)
    assert later == pytest.approx(prior, rel=0.05)


def test_one_pause_is_not_the_network():
    times, now = taught(lambda tokens: 5 + 0.02 * tokens)
    before = times.of("nixl", 2_000, now)
    times.observe(Received(2_000, "nixl", now), 0.0, now + 30.0)
    assert times.of("nixl", 2_000, now) < 3 * before


def test_both_ways_of_a_prompt_by_hand():
    decode = WorkerTimes(30.0, PrefillTime(10.0, 0.1, 0.0), StepTime(8.0, 0.5, 0.001), 4, 2_000)
    prefill = IDLE._replace(wait_ms=5.0)
    found = forecast(
        1_000, Side(times=decode, cached_tokens=400.0), Side(times=prefill, cached_tokens=0.0), 12.0
    )
    step = 8 + 0.5 * 4 + 0.001 * 2_000
    own = 10 + 0.1 * 600
    assert found["local"] == pytest.approx(30 + own + 1.5 * step + 0.1 * 4 * own)
    assert found["remote"] == pytest.approx(5 + (10 + 0.1 * 1_000) + 12 + step)


def test_a_prompt_that_is_cached_whole_still_computes_its_last_token():
    side = Side(times=IDLE, cached_tokens=64.0)
    assert forecast(64, side, side, 0.0)["local_prefill"] == pytest.approx(10.1)
