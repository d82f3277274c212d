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


def test_a_slow_network_is_believed_after_one_prompt():
    times = TransferTimes()
    times.observe(Received(8_000, "nixl", 10.0), 0.0, 10.0 + 8.4)
    assert times.of("nixl", 8_000, 18.4) == pytest.approx(8_400, rel=0.02)
    assert times.of("nixl", 4_000, 18.4) == pytest.approx(4_200, rel=0.15)


def test_a_first_hand_over_that_is_late_shows_a_slow_network_before_it_arrives():
    times, received = TransferTimes(), Received(8_000, "nixl", 10.0)
    prior = times.of("nixl", 8_000, 0.0)
    times.set_off(received)
    times.set_off(Received(8_000, "nixl", 11.0))
    assert times.of("nixl", 8_000, 10.9) == prior
    assert times.of("nixl", 8_000, 14.0) == pytest.approx(3_000)
    assert times.of("nixl", 4_000, 14.0) == pytest.approx(1_500, rel=0.12)
    times.ended(received)
    times.ended(received)
    assert times.of("nixl", 8_000, 14.0) == pytest.approx(2_000)


def test_a_network_that_was_slow_is_tried_with_one_prompt_at_a_time():
    times, now = taught(lambda tokens: 20 + 1.05 * tokens)
    later = now + 5 * TRANSFER_SECONDS
    assert times.of("nixl", 2_000, later) < 100
    times.began(Received(2_000, "nixl"), later)
    assert times.of("nixl", 2_000, later + 1) > 1_500  # while that one is under way
    assert times.of("nixl", 2_000, later + 5 * TRANSFER_SECONDS) < 100  # it never arrived


def test_a_network_that_has_recovered_is_trusted_after_a_few_tries():
    times, now = taught(lambda tokens: 20 + 1.05 * tokens)
    for _ in range(3):
        now += 3 * TRANSFER_SECONDS
        received = Received(2_000, "nixl", now)
        times.began(received, now)
        now += 0.050
        times.observe(received, 5.0, now)
    assert times.of("nixl", 2_000, now) < 200


def test_hand_overs_that_waited_for_a_prompt_there_count_little():
    times, now = taught(lambda tokens: 5 + 0.02 * tokens)
    for _ in range(3):
        times.observe(Received(2_000, "nixl", now), 0.0, now + 0.140, was_calm=False)
    assert times.of("nixl", 2_000, now) == pytest.approx(45, rel=0.2)


def test_models_that_are_gone_are_forgotten():
    times = TransferTimes()
    for model in ("a", "b"):
        times.observe(Received(2_000, (model, "nixl"), 1.0), 0.0, 2.0)
    times.keep({"b"})
    assert times.of(("a", "nixl"), 2_000, 2.0) == TransferTimes().of(("a", "nixl"), 2_000, 2.0)
    assert times.of(("b", "nixl"), 2_000, 2.0) > 500


def test_both_ways_of_a_prompt_by_hand():
    decode = WorkerTimes(30.0, PrefillTime(10.0, 0.1, 0.0), StepTime(8.0, 0.5, 0.001), 4, 2_000)
    prefill = IDLE._replace(wait_ms=5.0)
    found = forecast(
        1_000, Side(times=decode, cached_tokens=400.0), Side(times=prefill, cached_tokens=0.0), 12.0
    )
    step = 8 + 0.5 * 4 + 0.001 * 2_000
    own = 10 + 0.1 * 600
    assert found["local"] == pytest.approx(30 + own + 1.5 * step + 0.1 * 4 * own)
    joined = 8 + 0.5 * 5 + 0.001 * 3_000
    assert found["remote"] == pytest.approx(5 + (10 + 0.1 * 1_000) + 12 + step / 2 + joined)
    assert found["remote_queue"] == 0


def test_a_prompt_that_arrives_while_others_are_computed_there_waits_for_them():
    decode = IDLE._replace(wait_ms=300.0)
    found = forecast(1_000, Side(times=decode, cached_tokens=0.0), Side(times=IDLE, cached_tokens=0.0), 12.0)
    assert found["remote_queue"] == pytest.approx(300 - 110 - 12)
    assert found["remote"] == pytest.approx(300 + IDLE.joining_ms(1_000))


def test_an_idle_pair_is_no_quicker_than_an_idle_decode_worker():
    side = Side(times=IDLE, cached_tokens=0.0)
    found = forecast(5_000, side, side, 0.0)
    assert found["local"] < found["remote"]


@pytest.mark.parametrize(("num_decoding", "is_remote"), [(1, False), (5, True)])
def test_a_long_prompt_leaves_a_worker_with_streams(num_decoding, is_remote):
    streaming = IDLE._replace(num_decoding=num_decoding, decoding_tokens=1_000 * num_decoding)
    here, there = Side(times=streaming, cached_tokens=0.0), Side(times=IDLE, cached_tokens=0.0)
    found = forecast(4_000, here, there, TransferTimes().of("nixl", 4_000, 0.0))
    # 410 ms of prompt, a tenth of that for each stream, against 50 ms of transfer and a step or two
    assert (found["remote"] < found["local"]) is is_remote


def test_a_prompt_that_is_cached_whole_still_computes_its_last_token():
    side = Side(times=IDLE, cached_tokens=64.0)
    assert forecast(64, side, side, 0.0)["local_prefill"] == pytest.approx(10.1)
