import random
from collections import Counter

import pytest

from policies.sticky_until_saturated import StickyUntilSaturated
from tests.support.columns import REQUEST, make_candidates

SATURATION_BLOCKS = 20_480 * 14 / 16


def choose(candidates, seed=0, **parameters):
    return StickyUntilSaturated(parameters).choose(REQUEST, candidates, random.Random(seed))


@pytest.mark.parametrize(("waiting", "row"), [(0, 0), (SATURATION_BLOCKS, 0), (SATURATION_BLOCKS + 1, 1)])
def test_a_holder_is_stayed_with_until_it_is_saturated(waiting, row):
    candidates = make_candidates(2, prompt_blocks=10, device=[8, 0], prefill=[waiting, 5])
    assert choose(candidates).row == row


def test_what_spills_goes_where_the_least_prefill_waits():
    choice = choose(make_candidates(3, prompt_blocks=10, device=[9, 0, 0], prefill=[1e6, 30, 20]))
    assert (choice.row, choice.reason) == (2, "least prefill: every holder is saturated")


@pytest.mark.parametrize(("held", "row"), [(7.9, 1), (8.0, 0)])
def test_a_holder_has_most_of_the_prompt(held, row):
    candidates = make_candidates(2, prompt_blocks=10, device=[held, 0], prefill=[5, 0])
    assert choose(candidates).row == row


def test_of_several_holders_the_deepest_and_then_the_idlest():
    assert choose(make_candidates(3, prompt_blocks=10, device=[8, 9, 0], prefill=[0, 50, 0])).row == 1
    assert choose(make_candidates(3, prompt_blocks=10, device=[9, 9, 0], prefill=[60, 50, 0])).row == 1


def test_a_saturated_holder_leaves_the_others():
    candidates = make_candidates(2, prompt_blocks=10, device=[10, 8], prefill=[1e6, 100])
    assert choose(candidates).row == 1


def test_slower_tiers_hold_too():
    candidates = make_candidates(2, prompt_blocks=10, host=[5, 0], disk=[4, 0], prefill=[5, 0])
    assert choose(candidates).row == 0


def test_holding_nothing_is_no_affinity_even_when_none_is_asked_for():
    candidates = make_candidates(2, prompt_blocks=0, prefill=[5, 0])
    assert choose(candidates, affinity_threshold=0).reason == "least prefill: no holder"


def test_saturation_follows_its_parameters():
    candidates = make_candidates(2, prompt_blocks=10, device=[10, 0], prefill=[70, 5])
    assert choose(candidates, peak_prefill_throughput=1000, max_wait_seconds=1).row == 1
    assert choose(candidates, peak_prefill_throughput=1000, max_wait_seconds=1.2).row == 0


def test_an_idle_fleet_is_filled_evenly():
    rows = Counter(choose(make_candidates(4, prompt_blocks=10), seed).row for seed in range(800))
    assert all(140 < rows[row] < 260 for row in range(4))
