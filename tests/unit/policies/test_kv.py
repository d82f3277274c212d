"""The kv cost in worked numbers: every figure below was computed by hand from the formula."""

import random
from collections import Counter

import pytest

from policies.base import TierWeights
from policies.kv import Kv
from tests.support.columns import REQUEST, make_candidates


def choose(candidates, seed=0, **parameters):
    return Kv(parameters).choose(REQUEST, candidates, random.Random(seed))


def test_cost_is_prefill_left_to_do_plus_blocks_resident_while_decoding():
    candidates = make_candidates(
        3, prompt_blocks=10, device=[8, 0, 4], prefill=[20, 0, 3.5], decode=[12, 10, 11]
    )
    # 20+10-8+12, 0+10-0+10, 3.5+10-4+11
    assert choose(candidates).costs == [34, 20, 20.5]
    assert choose(candidates).row == 1


def test_tiers_save_by_their_weights():
    candidates = make_candidates(1, prompt_blocks=20, device=[4], host=[8], disk=[4])
    assert choose(candidates).costs == [20 - (4 + 0.75 * 8 + 0.25 * 4)]
    assert choose(candidates, host_cache_hit_weight=0.5, disk_cache_hit_weight=0).costs == [20 - (4 + 4)]


def test_credit_scales_the_device_overlap_only():
    candidates = make_candidates(1, prompt_blocks=20, device=[4], host=[4])
    assert choose(candidates, overlap_score_credit=2).costs == [20 - (8 + 3)]


def test_credit_counts_against_the_backlog_but_never_below_zero():
    candidates = make_candidates(2, prompt_blocks=10, device=[10, 10], prefill=[5, 50], decode=[7, 7])
    assert choose(candidates, overlap_score_credit=3).costs == [0 + 7, 60 - 30 + 7]


def test_prefill_scale_weighs_prefill_against_decode():
    candidates = make_candidates(1, prompt_blocks=10, device=[4], decode=[3])
    assert choose(candidates, prefill_load_scale=2.5).costs == [2.5 * 6 + 3]


def test_active_requests_cost_their_weight():
    candidates = make_candidates(2, active=[3, 1])
    assert choose(candidates, active_request_weight=1.5).costs == [4.5, 1.5]


def test_streams_that_a_new_prompt_would_stall_cost_their_weight():
    candidates = make_candidates(2, prompt_blocks=10, device=[4, 0], prefill=[3, 0], active=[5, 0])
    # 2 * (3+10-4) + 2 * 0.1 * 5 * (10-4), and 2 * 10 where nobody streams
    assert choose(candidates, prefill_load_scale=2, stall_weight=0.1).costs == [24, 20]
    assert choose(candidates, prefill_load_scale=2).costs == [18, 20]


def test_a_prompt_that_is_cached_stalls_nobody():
    candidates = make_candidates(1, prompt_blocks=10, device=[10], prefill=[3], active=[50])
    assert choose(candidates, stall_weight=1).costs == [3]
    assert choose(candidates, stall_weight=1, overlap_score_credit=2).costs == [0]


def test_prefill_untracked_stalls_nobody():
    candidates = make_candidates(1, prompt_blocks=10, active=[50], decode=[7])
    assert choose(candidates, stall_weight=1, track_prefill_tokens=False).costs == [7]


def test_equal_costs_are_chosen_evenly():
    policy, rng = Kv(), random.Random(2)
    candidates = make_candidates(4, prompt_blocks=10, decode=[5, 5, 5, 6])
    rows = Counter(policy.choose(REQUEST, candidates, rng).row for _ in range(3000))
    assert set(rows) == {0, 1, 2}
    assert min(rows.values()) > 900


def test_decay_halves_the_credit_at_one_prompt_of_excess_backlog():
    candidates = make_candidates(2, prompt_blocks=9.5, device=[8, 0], prefill=[12, 2])
    # excess = (12 - 2) / ceil(9.5) = 1, so the credit is 1/2: 12+9.5-4 and 2+9.5
    assert choose(candidates, overlap_score_credit_decay=1).costs == [17.5, 11.5]


def test_decay_moves_a_request_to_a_colder_worker_only_beyond_the_excess():
    near = make_candidates(2, prompt_blocks=10, device=[8, 0], prefill=[3, 0])
    far = make_candidates(2, prompt_blocks=10, device=[8, 0], prefill=[6, 0])
    assert [choose(c, overlap_score_credit_decay=1).row for c in (near, far)] == [0, 1]
    assert [choose(c).row for c in (near, far)] == [0, 0]


def test_decay_leaves_the_slower_tiers_alone():
    candidates = make_candidates(2, prompt_blocks=10, host=[4, 0], prefill=[10, 0])
    assert choose(candidates, overlap_score_credit_decay=1).costs == [20 - 3, 10]


def test_decay_with_an_empty_prompt_measures_by_one_block():
    candidates = make_candidates(2, device=[1, 0], prefill=[2, 1])
    assert choose(candidates, overlap_score_credit_decay=1).costs == [1.5, 1]


def test_prefill_untracked_leaves_decode_blocks():
    candidates = make_candidates(2, prompt_blocks=10, device=[8, 0], prefill=[9, 0], decode=[5, 4])
    assert choose(candidates, track_prefill_tokens=False).costs == [5, 4]


def test_blocks_untracked_leave_prefill():
    candidates = make_candidates(1, prompt_blocks=10, decode=[5])
    assert choose(candidates, track_active_blocks=False).costs == [10]
    assert not Kv({"track_active_blocks": False}).needs.decode_blocks


def test_what_the_booking_needs_to_know_comes_from_the_parameters():
    policy = Kv({"host_cache_hit_weight": 0.5, "disk_cache_hit_weight": 0.1, "assume_kv_reuse": False})
    assert policy.tier_weights == TierWeights(0.5, 0.1)
    assert not policy.assumes_kv_reuse


def test_temperature_draws_the_best_e_times_as_often_as_the_worst_whatever_the_scale():
    for scale in (0.1, 10_000):
        candidates = make_candidates(2, decode=[0.0, scale])
        policy, rng = Kv({"temperature": 1}), random.Random(1)
        rows = Counter(policy.choose(REQUEST, candidates, rng).row for _ in range(20_000))
        assert rows[0] / rows[1] == pytest.approx(2.718, rel=0.06)


def test_temperature_with_equal_costs_is_uniform():
    policy, rng = Kv({"temperature": 0.2}), random.Random(1)
    rows = Counter(policy.choose(REQUEST, make_candidates(4), rng).row for _ in range(8000))
    assert min(rows.values()) > 1800


def test_low_temperature_all_but_always_takes_the_cheapest():
    candidates = make_candidates(3, decode=[1e9, 0, 1e9])
    policy, rng = Kv({"temperature": 0.01}), random.Random(1)
    assert {policy.choose(REQUEST, candidates, rng).row for _ in range(100)} == {1}


def test_a_single_candidate_is_said_to_be_the_only_one():
    assert choose(make_candidates(1)).reason == "only candidate"
