"""What the latency policy is told, through the core's public methods alone."""

import math

import pytest

from policies import make_policy
from router.core.limits import BATCHED_TOKENS, MEAN_OUTPUT_START, PREFILL_PRIOR
from router.core.loads import ActiveSequences
from router.core.outcome import Outcome
from router.core.timekeeper import Timekeeper
from tests.support.columns import make_pool
from tests.support.fleets import BLOCK, make_core, prompt_of, request, silent


@pytest.fixture
def core():
    return make_core([silent("a"), silent("b")], "latency")


def send(core, request_id, tokens, *, now=0.0, stream=True):
    return core.route(request(request_id, stream=stream), prompt_of(tokens), now=now)


def times(core, now=0.0):
    """As a request would see them now, by worker."""
    return core.preview(request("p"), prompt_of([7] * BLOCK), now=now).candidates.times


def row(core, now=0.0, worker="a"):
    seen = times(core, now)
    index = "ab".index(worker)
    columns = ("wait_ms", "num_decoding", "decoding_tokens", "resident_tokens", "free_tokens")
    return {name: getattr(seen, name)[index] for name in columns}


def on(core, worker_id, request_id, tokens, **more):
    """To that worker."""
    other = "b" if worker_id == "a" else "a"
    core.route(request(request_id), prompt_of(tokens), now=0.0, exclude={other}, **more)


def test_an_idle_fleet(core):
    assert row(core) == {
        "wait_ms": 0,
        "num_decoding": 0,
        "decoding_tokens": 0,
        "resident_tokens": 0,
        "free_tokens": pytest.approx(0.99 * 1000 * BLOCK),
    }
    seen = times(core)
    assert seen.mean_output_tokens == MEAN_OUTPUT_START
    assert (seen.arrivals_per_ms, seen.batched_tokens) == (0, BATCHED_TOKENS)
    assert seen.prefill == [PREFILL_PRIOR] * 2


def test_a_request_waits_then_decodes_then_is_gone(core):
    idle = row(core)
    on(core, "a", "r", range(4 * BLOCK))
    waiting = row(core)
    assert waiting["wait_ms"] > 0
    assert (waiting["num_decoding"], waiting["resident_tokens"]) == (0, 64)
    core.first_token("r", now=1.0)
    core.output_tokens("r", 10, now=2.0)
    decoding = row(core)
    assert (decoding["num_decoding"], decoding["decoding_tokens"]) == (1, 74)
    assert (decoding["wait_ms"], decoding["resident_tokens"]) == (0, 74)
    assert decoding["free_tokens"] == pytest.approx(idle["free_tokens"] - 74)
    core.finish("r", Outcome.DONE, now=3.0)
    assert row(core) == idle
    core.check()


def test_shared_prefixes_take_memory_once_and_are_read_by_every_step(core):
    for name in ("r", "s"):
        on(core, "a", name, range(4 * BLOCK))
    seen = row(core)
    assert seen["resident_tokens"] == 128
    assert seen["free_tokens"] == pytest.approx(0.99 * 1000 * BLOCK - 64)


def test_capacity_follows_the_block_size_that_events_show():
    loads = ActiveSequences()
    loads.add_worker(0)
    keeper, pool = Timekeeper(loads), make_pool([(silent("a", num_blocks=100), 0)], block_tokens=BLOCK)
    keeper.add_worker(0, silent("a", num_blocks=100))
    assert keeper.times(pool, 0.0, 1.0).free_tokens == [pytest.approx(0.99 * 100 * 16)]
    keeper.set_capacity(0, 100, 32)
    assert keeper.times(pool, 0.0, 1.0).free_tokens == [pytest.approx(0.99 * 100 * 32)]
    keeper.set_capacity(0, None, 32)
    assert keeper.times(pool, 0.0, 1.0).free_tokens == [math.inf]


def test_a_worker_that_does_not_tell_its_capacity_has_room():
    core = make_core([silent("a", num_blocks=None), silent("b")], "latency")
    assert row(core)["free_tokens"] == math.inf


@pytest.mark.parametrize("outcome", Outcome)
def test_every_end_before_the_first_token_leaves_nothing(core, outcome):
    idle = row(core)
    for number in range(20):
        on(core, "a", f"r{number}", [number] * 70)
    for number in range(20):
        core.finish(f"r{number}", outcome, now=0.0)
    assert row(core) == idle
    core.check()


def test_a_worker_that_leaves_takes_its_time_along(core):
    on(core, "a", "r", range(64))
    core.reconcile([silent("b")], now=0.0)
    core.reconcile([silent("b"), silent("a")], now=0.0)
    core.expire(now=100.0)
    seen = times(core, now=100.0)
    assert list(seen.wait_ms) == [0, 0]
    core.check()


def test_arrivals_are_counted_over_twenty_seconds_for_each_worker(core):
    for number in range(400):
        send(core, f"r{number}", [number] * 20, now=number * 0.1)
        core.finish(f"r{number}", Outcome.DONE, now=number * 0.1)
    # 10 requests a second at two workers; two time constants of it are seen
    assert times(core, now=40.0).arrivals_per_ms == pytest.approx(0.005, rel=0.15)
    assert times(core, now=100.0).arrivals_per_ms < 0.0003


def test_the_mean_length_of_answers_is_that_of_whole_ones(core):
    send(core, "r", range(64))
    core.output_tokens("r", 1200, now=1.0)
    core.finish("r", Outcome.DONE, now=2.0)
    assert times(core).mean_output_tokens == pytest.approx(200 + 0.01 * 1000)
    send(core, "s", range(64))
    core.output_tokens("s", 5, now=1.0)
    core.finish("s", Outcome.CLIENT_GONE, now=2.0)
    assert times(core).mean_output_tokens == pytest.approx(210)


def test_an_answer_in_one_piece_decodes_from_when_its_prefill_should_be_done(core):
    core.route(request("r", stream=False), prompt_of(range(64)), now=0.0, exclude={"b"})
    assert row(core)["num_decoding"] == 0
    core.expire(now=60.0)
    seen = row(core, now=60.0)
    assert (seen["num_decoding"], seen["wait_ms"]) == (1, 0)
    core.finish("r", Outcome.DONE, now=61.0)
    core.check()


def test_requests_of_another_policy_are_load_and_no_queue(core):
    core.set_policy(make_policy("round_robin"))
    send(core, "r", range(64))
    core.first_token("r", now=0.1)
    core.set_policy(make_policy("latency"))
    assert row(core)["num_decoding"] == 1
    core.output_tokens("r", 3, now=0.2)
    core.finish("r", Outcome.DONE, now=0.3)
    core.check()


def test_a_preview_leaves_the_clocks_alone(core):
    before = times(core)
    for _ in range(5):
        assert times(core) == before


def test_workers_of_one_model_and_engine_learn_from_each_other():
    """A speed that is seen on one of them is expected of all; another engine is on its own."""
    core = make_core([silent("a"), silent("b"), silent("c", engine="sglang")], "latency")
    for number in range(60):
        now = float(number)
        core.route(request(f"r{number}"), prompt_of([number] * 4000), now=now, exclude={"b", "c"})
        core.first_token(f"r{number}", now=now + 0.1)
        core.finish(f"r{number}", Outcome.DONE, now=now + 0.2)
    seen = times(core, now=60.0)
    taken = [each.of(4000, 0) for each in seen.prefill]
    assert taken[0] == pytest.approx(100, rel=0.1)
    assert taken[1] == pytest.approx(100, rel=0.1)
    assert seen.prefill[2] == PREFILL_PRIOR
