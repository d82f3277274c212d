"""The cost in worked numbers: every figure was computed by hand from the formula, for prefill in
15 + 0.05 new + 4.7e-7 (n^2 - hit^2) ms and steps in 15 + 0.06 streams + 4e-5 tokens ms."""

import math
import random
from collections import Counter
from dataclasses import replace

import pytest

from policies.engine_time import PrefillTime
from policies.latency import Latency
from policies.types import Role
from tests.support.columns import REQUEST, make_candidates, make_times

TENTH = {"abs": 0.1, "rel": 0}


def choose(candidates, seed=0, **parameters):
    return Latency(parameters).choose(REQUEST, candidates, random.Random(seed))


def one(n, hit=0, *, active=0, tokens=0, decoding=None, decoding_tokens=None, wait=0.0, **more):
    """One worker; all its requests decode unless said otherwise."""
    times = make_times(
        1,
        wait=[wait],
        decoding=[active if decoding is None else decoding],
        decoding_tokens=[tokens if decoding_tokens is None else decoding_tokens],
        resident=[tokens],
        **more,
    )
    return make_candidates(1, prompt_blocks=n / 16, device=[hit / 16], active=[active], times=times)


def terms_of(choice, row=0):
    return dict(zip(choice.term_names, choice.terms[row], strict=True))


@pytest.mark.parametrize(
    ("candidates", "prefill", "steps", "first_token", "later", "streams", "cost"),
    [
        (one(8192), 456.1, 0.0, 456.1, 83.2, 461.8, 1001.2),
        (one(8192, 6144, active=20, tokens=160_000), 131.2, 33.9, 165.1, 6.9, 952.2, 1124.2),
        (one(8192, 6144, active=8, tokens=64_000), 131.2, 27.1, 158.3, 6.9, 658.0, 823.1),
        (one(8192, 7680, active=20, tokens=160_000), 44.4, 33.9, 78.3, 0.8, 778.6, 857.8),
        (
            one(8192, 6144, active=8, tokens=64_000, decoding=6, decoding_tokens=48_000, wait=900.0),
            131.2, 25.9, 1057.1, 101.3, 658.0, 1816.4,
        ),
    ],
)  # fmt: skip
def test_worked_examples(candidates, prefill, steps, first_token, later, streams, cost):
    choice = choose(candidates)
    terms = terms_of(choice)
    assert terms["prefill"] == pytest.approx(prefill, **TENTH)
    assert terms["steps"] == pytest.approx(steps, **TENTH)
    expected = terms["wait"] + terms["memory"] + terms["prefill"] + terms["steps"]
    assert expected == pytest.approx(first_token, **TENTH)
    assert terms["later"] == pytest.approx(later, **TENTH)
    assert terms["streams"] == pytest.approx(streams, **TENTH)
    assert choice.costs[0] == pytest.approx(cost, **TENTH)
    assert choice.costs[0] == pytest.approx(sum(terms.values()))
    assert f"first token in {first_token:.0f} ms" in choice.reason


@pytest.mark.parametrize(("hit", "active", "row"), [(6144, 20, 0), (6144, 8, 1), (7680, 20, 1)])
def test_an_idle_worker_beats_a_holder_of_three_quarters_only_when_many_stream_there(hit, active, row):
    tokens = 8000 * active
    times = make_times(2, decoding=[0, active], decoding_tokens=[0, tokens], resident=[0, tokens])
    candidates = make_candidates(2, prompt_blocks=512, device=[0, hit / 16], active=[0, active], times=times)
    assert choose(candidates).row == row


def test_memory_that_is_lacking_is_waited_for_at_the_rate_at_which_streams_end():
    full = {"active": 20, "tokens": 160_000, "free": [48.0]}
    # 2000 tokens lack; in 300 steps of 22.6 ms 160,000 become free
    memory = terms_of(choose(one(8192, 6144, **full)))["memory"]
    assert memory == pytest.approx(2000 * 300 * 22.6 / 160_000, **TENTH)
    slower = terms_of(choose(one(8192, 6144, observed=[45.2], **full)))["memory"]
    assert slower == pytest.approx(2 * memory)


@pytest.mark.parametrize("free", [[2048.0], [math.inf]])
def test_memory_that_is_there_or_unknown_is_not_waited_for(free):
    assert terms_of(choose(one(8192, 6144, active=20, tokens=160_000, free=free)))["memory"] == 0


def test_a_worker_without_streams_frees_nothing_by_waiting():
    assert terms_of(choose(one(8192, free=[100.0])))["memory"] == 0


def test_at_least_the_last_token_is_computed():
    whole = terms_of(choose(one(8192, 8192)))["prefill"]
    assert whole == pytest.approx(15 + 0.05 + 4.7e-7 * (8192**2 - 8191**2))
    assert terms_of(choose(one(0)))["prefill"] == 15


def test_slower_tiers_save_a_part():
    times = make_times(1)
    candidates = make_candidates(1, prompt_blocks=40, host=[16], disk=[16], times=times)
    hit = 16 * (0.75 * 16 + 0.25 * 16)
    assert terms_of(choose(candidates))["prefill"] == PrefillTime(15.0, 0.05, 4.7e-7).of(640, hit)


@pytest.mark.parametrize(("goal", "weight"), [("first-token", 0.03), ("balanced", 0.1), ("throughput", 0.3)])
def test_the_goal_weighs_streams_alone(goal, weight):
    candidates = one(8192, 6144, active=8, tokens=64_000)
    terms, default = terms_of(choose(candidates, goal=goal)), terms_of(choose(candidates))
    assert terms["streams"] == pytest.approx(default["streams"] * weight / 0.1)
    assert {**terms, "streams": 0} == {**default, "streams": 0}


def test_each_worker_is_as_fast_as_it_is():
    times = make_times(2)
    times.prefill = [PrefillTime(30.0, 0.1, 9.4e-7), PrefillTime(15.0, 0.05, 4.7e-7)]
    assert choose(make_candidates(2, prompt_blocks=512, times=times)).row == 1


def test_equal_costs_go_to_the_deepest_hit_then_the_fewest_tokens():
    flat = PrefillTime(15.0, 0.0, 0.0)
    hits = make_candidates(2, prompt_blocks=64, device=[16, 32], times=make_times(2, prefill=flat))
    assert choose(hits).row == 1
    times = make_times(2, resident=[20, 10])  # 0.01 ms apart
    assert {choose(make_candidates(2, prompt_blocks=64, times=times), seed).row for seed in range(9)} == {1}


def test_beyond_a_millisecond_costs_are_not_equal():
    times = make_times(2, wait=[0.0, 1.1], prefill=PrefillTime(15.0, 0.0, 0.0))
    assert choose(make_candidates(2, prompt_blocks=64, device=[16, 32], times=times)).row == 0


def test_an_idle_fleet_is_filled_evenly():
    rows = Counter(choose(make_candidates(4, prompt_blocks=64), seed).row for seed in range(800))
    assert all(140 < rows[row] < 260 for row in range(4))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_time_that_is_no_number_is_refused(bad):
    times = make_times(2, wait=[0.0, bad])
    with pytest.raises(ValueError, match="not finite"):
        choose(make_candidates(2, prompt_blocks=64, times=times))


def test_nobody_is_hoarded_by_the_holder_of_a_hot_prefix():
    """The term for those who come later grows with what waits already."""
    waits = [terms_of(choose(one(8192, wait=wait)))["later"] for wait in (0.0, 500.0, 1000.0)]
    assert waits[1] - waits[0] == pytest.approx(waits[2] - waits[1])
    assert waits[0] < waits[1]


def test_a_prompt_that_is_computed_elsewhere_stalls_nobody_and_waits_for_no_queue():
    candidates = one(8192, 6144, active=8, tokens=64_000, decoding=6, decoding_tokens=48_000, wait=900.0)
    candidates.times.handed_over_ms = [500.0]
    choice = choose(candidates)
    terms = terms_of(choice)
    assert terms["handed_over"] == 500
    assert [terms[name] for name in ("wait", "memory", "prefill", "steps", "later")] == [0] * 5
    step = 15 + 0.06 * 9 + 4e-5 * (64_000 + 8192 + 150)
    assert terms["streams"] == pytest.approx(0.1 * 300 * step)
    assert choice.costs[0] == pytest.approx(sum(terms.values()))
    assert "first token in 500 ms" in choice.reason


@pytest.mark.parametrize(("elsewhere", "row"), [(100.0, 1), (2_000.0, 0)])
def test_rows_that_compute_prompts_themselves_compare_with_those_that_do_not(elsewhere, row):
    times = make_times(2, wait=[300.0, 300.0])
    times.handed_over_ms = [None, elsewhere]
    choice = choose(make_candidates(2, prompt_blocks=512, times=times))
    assert choice.row == row
    assert terms_of(choice, 0)["handed_over"] == 0


def test_prefill_workers_have_no_streams_to_spare_and_wait_for_none():
    candidates = one(8192, active=3, decoding=0, tokens=24_000, wait=700.0, free=[0.0])
    candidates.workers = [replace(worker, role=Role.PREFILL) for worker in candidates.workers]
    terms = terms_of(choose(candidates))
    assert (terms["streams"], terms["memory"], terms["steps"]) == (0, 0, 0)
    assert terms["prefill"] == pytest.approx(456.1, **TENTH)
    assert terms["wait"] == 700
