"""What the core does with requests over their lives."""

import math
from collections import Counter

import pytest

from indexer.blocks import Unit
from indexer.events import AllBlocksCleared
from policies import BasePolicy, Needs, make_policy
from policies.costs import cheapest
from policies.types import ServedModel
from router.core.health import HealthSign
from router.core.limits import PRIOR_PREFILL_TOKENS_PER_SECOND
from router.core.outcome import Outcome
from router.core.usage import CachedTokens
from router.errors import NoWorkers, UnknownModel
from tests.support.fleets import BLOCK, Engine, make_core, prompt_of, publishing, request, silent

FOUR = list(range(4 * BLOCK))
FIVE = [*FOUR, *range(16)]


def load(core, worker_id):
    view = core.worker(worker_id)
    return view.num_active_requests, view.active_prefill_tokens, view.active_decode_blocks


def answer(core, request_id, *, now=0.0):
    """Its worker answers, and the request ends."""
    core.first_token(request_id, now=now)
    core.finish(request_id, Outcome.DONE, now=now)


def route(core, request_id, tokens=FOUR, *, now=0.0, stream=True, **options):
    return core.route(request(request_id, stream=stream), prompt_of(tokens), now=now, **options)


# Booking and release


def test_a_decision_is_booked_before_the_next_is_made():
    core = make_core([silent(worker_id) for worker_id in "abcd"])
    taken = Counter(route(core, f"r{n}", [n] * 64).worker.id for n in range(8))
    assert set(taken.values()) == {2}


def test_the_first_token_releases_the_prefill_once():
    core = make_core([silent("a")])
    route(core, "r1")
    route(core, "r2", [9] * 40)
    core.first_token("r1", now=1.0)
    core.first_token("r1", now=2.0)
    assert load(core, "a") == (2, 40, 6)


def test_output_is_counted_and_begins_with_a_first_token():
    core = make_core([silent("a")])
    route(core, "r")
    core.output_tokens("r", 0, now=1.0)
    assert load(core, "a") == (1, 64, 4)
    core.output_tokens("r", 3, now=1.0)
    assert load(core, "a") == (1, 0, 4)
    assert core.worker("a").active_output_tokens == 3


@pytest.mark.parametrize("outcome", Outcome)
def test_every_end_frees_everything_and_again_nothing(outcome):
    core = make_core([silent("a")])
    route(core, "r1")
    route(core, "r2", [9] * 32)
    for _ in range(2):
        core.finish("r1", outcome, now=1.0)
        assert load(core, "a") == (1, 32, 2)


def test_what_is_said_of_unknown_requests_has_no_effect():
    core = make_core([silent("a")])
    core.first_token("x", now=0.0)
    core.output_tokens("x", 1, now=0.0)
    core.finish("x", Outcome.DONE, now=0.0)
    assert core.observe_usage("x", prompt_tokens=1, cached_tokens=1, now=0.0) is None
    assert load(core, "a") == (0, 0, 0)


def test_an_attempt_that_is_over_cannot_free_the_one_that_took_its_place():
    core = make_core([silent("a"), silent("b")])
    first = route(core, "r")
    core.finish("r", Outcome.WORKER_FAILED, now=0.0)
    second = route(core, "r", attempt=1, exclude={first.worker.id})
    assert second.worker.id != first.worker.id
    core.finish("r", Outcome.CLIENT_GONE, now=0.0, attempt=0)
    core.first_token("r", now=0.0, attempt=0)
    assert load(core, second.worker.id) == (1, 64, 4)
    assert load(core, first.worker.id) == (0, 0, 0)


def test_the_same_id_twice_while_active_is_a_mistake_and_books_nothing():
    core = make_core([silent("a")])
    route(core, "r")
    with pytest.raises(ValueError, match="r is booked already"):
        route(core, "r")
    assert load(core, "a") == (1, 64, 4)


@pytest.mark.parametrize("cost", [math.nan, math.inf, -math.inf])
def test_a_cost_that_is_no_number_is_refused_before_anything_is_booked(cost):
    class Broken(BasePolicy):
        name = "broken"

        def choose(self, request, candidates, rng):
            return cheapest(candidates, [cost, 1.0], rng)

    core = make_core([silent("a"), silent("b")])
    core.set_policy(Broken())
    with pytest.raises(ValueError, match="not finite"):
        core.route(request("r"), prompt_of(range(64)), now=1.0)
    assert [view.num_active_requests for view in core.workers()] == [0, 0]
    assert core.decisions() == []
    core.check()


def test_a_retry_has_no_worker_left_once_all_were_tried():
    core = make_core([silent("a")])
    with pytest.raises(NoWorkers):
        route(core, "r", attempt=1, exclude={"a"})
    assert load(core, "a") == (0, 0, 0)


def test_a_worker_that_leaves_takes_its_bookings_and_returns_with_none():
    core = make_core([silent("a")])
    route(core, "r")
    core.reconcile([], now=0.0)
    core.finish("r", Outcome.WORKER_FAILED, now=0.0)
    core.reconcile([silent("a")], now=0.0)
    core.finish("r", Outcome.DONE, now=0.0)
    assert load(core, "a") == (0, 0, 0)
    core.check()


def test_a_long_request_is_load_until_it_ends():
    core = make_core([silent("a")])
    route(core, "r")
    core.expire(now=1e6)
    assert load(core, "a") == (1, 64, 4)


def test_without_streaming_the_prefill_is_released_when_it_should_be_done():
    core = make_core([silent("a")])
    route(core, "r1", stream=False)
    route(core, "r2", [9] * 36, stream=False)
    first, second = 64 / PRIOR_PREFILL_TOKENS_PER_SECOND, 100 / PRIOR_PREFILL_TOKENS_PER_SECOND
    assert core.expire(now=0.0) == pytest.approx(first)
    assert load(core, "a")[1] == 100
    assert core.expire(now=first) == pytest.approx(second)
    assert load(core, "a")[1] == 36
    core.expire(now=second)
    assert load(core, "a")[1] == 0


def test_without_streaming_the_head_of_the_answer_releases_it_at_the_latest():
    core = make_core([silent("a")])
    route(core, "r", stream=False)
    core.first_token("r", now=0.0)
    assert load(core, "a")[1] == 0


def test_how_long_a_prefill_should_take_is_learnt_from_streams():
    core = make_core([silent("a")])
    for n in range(100):
        route(core, f"r{n}", [n] * 200, now=n)
        core.first_token(f"r{n}", now=n + 0.5)
        core.finish(f"r{n}", Outcome.DONE, now=n + 0.5)
    route(core, "r", [1000] * 200, now=200.0, stream=False)
    assert core.expire(now=200.0) == pytest.approx(200.5, abs=0.05)


# Choice


def test_a_prompt_goes_to_the_worker_that_holds_its_prefix():
    core = make_core([publishing(worker_id) for worker_id in "abc"])
    engines = {worker_id: Engine(core, worker_id) for worker_id in "abc"}
    engines["b"].store(FOUR)
    assert route(core, "r", FIVE).worker.id == "b"


def test_one_at_a_time_distinct_prompts_spread_and_the_same_prompt_stays():
    core = make_core([silent(worker_id) for worker_id in "abcd"])
    taken = []
    for n in range(8):
        taken.append(route(core, f"r{n}", [n] * 64).worker.id)
        answer(core, f"r{n}")
    assert set(Counter(taken).values()) == {2}
    for n in range(8):
        assert route(core, f"again{n}", [n] * 64, now=1.0).worker.id == taken[n]
        answer(core, f"again{n}", now=1.0)


def test_a_tie_goes_to_the_worker_that_served_the_prefix_last_when_all_else_is_forgotten():
    core = make_core([silent(worker_id) for worker_id in "abcd"], predicted_ttl=10.0)
    first = route(core, "r").worker.id
    answer(core, "r")
    for n in range(5):
        again = core.preview(request(f"r{n}"), prompt_of(FIVE), now=100.0)
        assert again.worker.id == first
        assert again.reason.endswith("served this prefix last")


def test_a_saturated_holder_gives_its_excess_away():
    core = make_core([silent("a"), silent("b")])
    route(core, "r0")
    taken = Counter(route(core, f"r{n}", [*FOUR, *[n] * 640]).worker.id for n in range(1, 9))
    assert min(taken.values()) >= 3


def test_a_burst_of_long_prompts_with_one_token_answers_is_spread_by_tokens_not_by_requests():
    core = make_core([silent(worker_id, num_blocks=None) for worker_id in "abcd"])
    for n in range(60):
        route(core, f"r{n}", [n] * (32_000 if n % 3 else 8_000))
    booked = [view.active_prefill_tokens for view in core.workers()]
    assert max(booked) / min(booked) <= 1.2


def test_suspects_are_skipped_and_return():
    core = make_core([silent("a"), silent("b")])
    core.observe_health("a", HealthSign.CONNECT_FAILED, now=0.0)
    assert {route(core, f"r{n}").worker.id for n in range(4)} == {"b"}
    core.observe_health("a", HealthSign.PROBE_OK, now=0.0)
    assert route(core, "r", [9] * 64).worker.id == "a"


def test_the_same_seed_gives_the_same_decisions():
    def run(seed):
        core = make_core([silent(worker_id) for worker_id in "abcdefgh"], "random", seed=seed)
        return [route(core, f"r{n}").worker.id for n in range(20)]

    assert run(1) == run(1) != run(2)


@pytest.mark.parametrize("policy", ["random", "round_robin", "power_of_two", "session", "kv"])
def test_a_preview_says_what_will_be_decided_and_leaves_no_trace(policy):
    core = make_core([silent(worker_id) for worker_id in "abcd"], policy)
    for n in range(10):
        previews = {core.preview(request("p"), prompt_of([n] * 64), now=0.0).worker.id for _ in range(3)}
        assert previews == {route(core, f"r{n}", [n] * 64).worker.id}
    assert core.decision("p") is None
    assert sum(view.num_active_requests for view in core.workers()) == 10


def test_the_policy_changes_while_requests_are_in_flight():
    core = make_core([silent("a"), silent("b")], "kv")
    route(core, "r1")
    core.set_policy(make_policy("round_robin"))
    assert core.needs == Needs()
    assert [route(core, f"x{n}").worker.id for n in range(4)] == ["a", "b", "a", "b"]
    core.finish("r1", Outcome.DONE, now=0.0)
    assert sum(view.num_active_requests for view in core.workers()) == 4
    assert core.decisions()[0].policy == "round_robin"
    assert core.decision("r1").policy == "kv"
    core.check()


# Attempts that come to nothing


def expected_on(core, worker_id, *, now=1.0):
    """Leading blocks of FOUR that the worker is believed to hold."""
    candidates = core.preview(request("p"), prompt_of(FIVE), now=now).candidates
    return {w.id: depth for w, depth in zip(candidates.workers, candidates.device_overlap, strict=True)}[
        worker_id
    ]


@pytest.mark.parametrize("make", [silent, publishing])
@pytest.mark.parametrize("outcome", Outcome)
def test_an_attempt_without_an_answer_leaves_no_belief(make, outcome):
    core = make_core([make("a")])
    route(core, "r")
    assert expected_on(core, "a") == 4
    core.finish("r", outcome, now=0.5)
    assert expected_on(core, "a") == 0
    assert core.worker("a").num_predicted_blocks == 0
    core.check()


@pytest.mark.parametrize("outcome", Outcome)
def test_an_attempt_that_breaks_off_in_its_answer_has_computed_its_prompt(outcome):
    core = make_core([silent("a")])
    route(core, "r")
    core.first_token("r", now=0.5)
    core.finish("r", outcome, now=0.5)
    assert expected_on(core, "a", now=100.0) == 4


def test_a_worker_that_failed_does_not_attract_the_next_request_with_that_prefix():
    core = make_core([silent("a"), silent("b")])
    failed = route(core, "r").worker.id
    core.finish("r", Outcome.WORKER_FAILED, now=0.5)
    other = route(core, "r", now=0.5, attempt=1, exclude={failed}).worker.id
    answer(core, "r", now=1.0)
    assert route(core, "next", now=2.0).worker.id == other


def test_a_worker_that_failed_does_not_win_a_tie_as_the_one_that_served_last():
    core = make_core([silent("a"), silent("b")])
    route(core, "r")
    core.finish("r", Outcome.WORKER_FAILED, now=0.5)
    assert core.preview(request("p"), prompt_of(FOUR), now=0.5).reason.endswith("at random")


def test_a_failed_attempt_takes_nothing_from_what_was_answered_before():
    core = make_core([silent("a")])
    route(core, "r1", FOUR[:32])
    answer(core, "r1")
    route(core, "r2")
    core.finish("r2", Outcome.WORKER_FAILED, now=0.5)
    assert expected_on(core, "a") == 2


def test_what_requests_in_flight_share_goes_with_the_last_of_them():
    core = make_core([silent("a")])
    for request_id, tokens in [("r1", FOUR), ("r2", FIVE), ("r3", FOUR[:32])]:
        route(core, request_id, tokens)
    core.finish("r2", Outcome.WORKER_FAILED, now=0.5)
    assert expected_on(core, "a") == 4
    core.finish("r1", Outcome.WORKER_FAILED, now=0.5)
    assert expected_on(core, "a") == 2
    core.finish("r3", Outcome.WORKER_FAILED, now=0.5)
    assert expected_on(core, "a") == 0


def test_what_one_request_has_proven_stays_when_another_fails():
    core = make_core([silent("a")])
    route(core, "r1")
    route(core, "r2")
    answer(core, "r1", now=0.3)
    core.finish("r2", Outcome.WORKER_FAILED, now=0.5)
    assert expected_on(core, "a") == 4


def test_a_failed_attempt_takes_nothing_from_what_events_tell():
    core = make_core([publishing("a")])
    engine = Engine(core, "a")
    engine.store(FOUR[:32])
    route(core, "r")
    core.finish("r", Outcome.WORKER_FAILED, now=0.5)
    assert expected_on(core, "a") == 2
    assert core.feed.stats(engine.slot).num_overreports == 0


def test_a_failed_attempt_with_a_byte_prompt_is_disbelieved_too():
    core = make_core([publishing("a")])
    as_bytes = prompt_of(FOUR, unit=Unit.BYTES)
    core.route(request("r"), as_bytes, now=0.0)
    core.finish("r", Outcome.TIMED_OUT, now=0.5)
    assert core.preview(request("p"), as_bytes, now=0.5).candidates.device_overlap == (0,)


def test_the_forecast_says_nothing_of_a_worker_that_failed():
    core = make_core([silent("a")])
    route(core, "r", stream=False)
    core.expire(now=10.0)
    core.finish("r", Outcome.WORKER_FAILED, now=10.0)
    assert expected_on(core, "a", now=10.0) == 0


def test_a_client_that_leaves_a_stream_before_it_began_proves_nothing():
    core = make_core([silent("a")])
    route(core, "r1")
    route(core, "r2")
    assert core.decision("r2").details["booked_prefill_tokens"] == 0
    for request_id in ("r1", "r2"):
        core.finish(request_id, Outcome.CLIENT_GONE, now=0.5)
    assert expected_on(core, "a") == 0


def test_of_a_client_that_left_an_answer_in_one_piece_the_forecast_stands():
    core = make_core([silent("a")])
    route(core, "r1", stream=False)
    core.expire(now=10.0)
    core.finish("r1", Outcome.CLIENT_GONE, now=10.0)
    assert expected_on(core, "a", now=10.0) == 4
    route(core, "r2", [9] * 64, now=10.0, stream=False)
    core.finish("r2", Outcome.CLIENT_GONE, now=10.0)
    assert core.worker("a").num_predicted_blocks == 4


# What engines report


def reported_core(workers=("a",)):
    """Worker a holds FOUR and reports cached tokens."""
    core = make_core([publishing(worker_id) for worker_id in workers])
    engines = {worker_id: Engine(core, worker_id) for worker_id in workers}
    engines["a"].store(FOUR)
    return core, engines["a"]


def usage(core, request_id, cached):
    return core.observe_usage(request_id, prompt_tokens=80, cached_tokens=cached, now=1.0)


def believed(core):
    """Leading blocks of FOUR that a's events promise, bridges aside."""
    return core.preview(request("p"), prompt_of(FIVE), now=1000.0).candidates.device_overlap[0]


def test_expected_and_reported_are_compared_for_exact_prompts():
    core, _ = reported_core()
    route(core, "r", FIVE)
    assert usage(core, "r", 64) == CachedTokens(expected=64, reported=64)
    assert believed(core) == 4


def test_inexact_prompts_are_not_compared():
    core, _ = reported_core()
    core.route(request("r"), prompt_of(FIVE, exact=False), now=0.0)
    assert usage(core, "r", 0) is None
    assert believed(core) == 4


def test_a_policy_that_looks_nothing_up_expects_nothing():
    core, _ = reported_core()
    core.set_policy(make_policy("least_loaded"))
    route(core, "r", FIVE)
    assert usage(core, "r", 64) is None


def test_a_missing_number_means_zero_only_once_a_number_was_seen():
    core, _ = reported_core()
    route(core, "r1", FIVE)
    assert usage(core, "r1", None) is None
    assert believed(core) == 4
    core.finish("r1", Outcome.DONE, now=1.0)
    route(core, "r2", FIVE)
    usage(core, "r2", 64)
    core.finish("r2", Outcome.DONE, now=1.0)
    route(core, "r3", FIVE, now=10.0)
    assert usage(core, "r3", None) == CachedTokens(expected=64, reported=0)
    assert believed(core) == 0


def test_less_than_expected_for_a_lone_request_withdraws_the_claim_beyond_it():
    core, engine = reported_core()
    route(core, "r", FIVE)
    core.first_token("r", now=0.5)
    usage(core, "r", 32)
    assert believed(core) == 2
    assert core.feed.stats(engine.slot).num_overreports == 1
    # What it computed anew is there now, and bridged until events say so.
    assert core.preview(request("p"), prompt_of(FIVE), now=2.0).candidates.device_overlap == [5]


def test_more_than_expected_withdraws_nothing():
    core, engine = reported_core()
    route(core, "r", FIVE)
    usage(core, "r", 80)
    assert believed(core) == 4
    assert core.feed.stats(engine.slot).num_overreports == 0


def test_a_request_that_was_not_alone_withdraws_nothing():
    core, _ = reported_core()
    route(core, "earlier", [9] * 20)
    route(core, "r", FIVE)
    core.first_token("r", now=0.5)
    usage(core, "r", 0)
    assert believed(core) == 4


def test_a_request_that_was_joined_before_its_first_token_withdraws_nothing():
    core, _ = reported_core()
    route(core, "r", FIVE)
    route(core, "later", [9] * 20)
    core.finish("later", Outcome.DONE, now=0.2)
    core.first_token("r", now=0.5)
    usage(core, "r", 0)
    assert believed(core) == 4


def test_being_joined_after_its_first_token_does_not_matter():
    core, _ = reported_core()
    route(core, "r", FIVE)
    core.first_token("r", now=0.5)
    route(core, "later", [9] * 20)
    usage(core, "r", 0)
    assert believed(core) == 0


@pytest.mark.parametrize("loss", ["cleared", "evicted"])
def test_a_loss_that_events_have_told_of_meanwhile_explains_itself(loss):
    core, engine = reported_core()
    route(core, "r", FIVE)
    core.first_token("r", now=0.5)
    if loss == "cleared":
        engine.publish([AllBlocksCleared()])
    else:
        engine.remove(FOUR, 0, 4)
    engine.store(FIVE)
    usage(core, "r", 0)
    assert believed(core) == 5


def test_a_claim_that_only_the_bridge_makes_is_not_withdrawn_from_the_index():
    core, engine = reported_core()
    six = [*FIVE, *range(16)]
    route(core, "r1", six)
    answer(core, "r1", now=0.1)
    route(core, "r2", six, now=0.2)
    assert core.observe_usage("r2", prompt_tokens=96, cached_tokens=64, now=0.3) == CachedTokens(80, 64)
    assert core.feed.stats(engine.slot).num_overreports == 0


# Fleet


def test_the_fleet_says_what_it_serves():
    core = make_core([silent("a"), silent("b", models=(ServedModel("other"),))])
    assert core.models() == ("model", "other")
    assert core.resolve("other").base_model == "other"
    with pytest.raises(UnknownModel):
        core.resolve("third")


def test_a_worker_s_state_is_one_word():
    core = make_core([silent("a")])
    states = [core.worker("a").state]
    core.observe_health("a", HealthSign.PROBE_FAILED, now=0.0)
    states.append(core.worker("a").state)
    core.set_asleep("a", True, now=0.0)
    states.append(core.worker("a").state)
    core.set_draining("a", True, now=0.0)
    states.append(core.worker("a").state)
    assert states == ["healthy", "suspect", "asleep", "draining"]
    core.set_draining("a", False, now=0.0)
    core.observe_health("a", HealthSign.RESTARTED, now=0.0)
    assert core.worker("a").state == "healthy", "a new process is awake"


def test_workers_that_left_are_not_known():
    core = make_core([silent("a")])
    core.reconcile([], now=0.0)
    assert (core.worker("a"), core.slot_of("a"), core.workers()) == (None, None, [])
    core.observe_health("a", HealthSign.RESTARTED, now=0.0)
    core.set_draining("a", True, now=0.0)


# Time


def test_an_idle_core_waits_for_nothing():
    core = make_core([publishing("a"), silent("b")])
    assert core.expire(now=0.0) is None


def test_predictions_are_cleared_away_and_then_nothing_waits():
    core = make_core([silent("a")], predicted_ttl=10.0)
    route(core, "r")
    core.first_token("r", now=0.0)
    core.finish("r", Outcome.DONE, now=0.0)
    assert core.expire(now=1.0) > 1.0
    assert core.expire(now=10.0) is None
    assert core.worker("a").num_predicted_blocks == 0
