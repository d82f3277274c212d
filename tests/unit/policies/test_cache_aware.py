import random
from collections import Counter

import pytest

from policies.cache_aware import CacheAware
from tests.support.columns import REQUEST, make_candidates


def choose(candidates, seed=0, **parameters):
    return CacheAware(parameters).choose(REQUEST, candidates, random.Random(seed))


def test_the_longest_match_is_followed_whatever_the_loads_while_they_are_even():
    choice = choose(make_candidates(3, prompt_blocks=10, device=[4, 6, 0], active=[0, 60, 5]))
    assert (choice.row, choice.reason) == (1, "matches 60% of the prompt")


def test_a_match_on_slower_tiers_is_a_match():
    assert choose(make_candidates(2, prompt_blocks=10, device=[2, 3], host=[2, 0], disk=[1, 0])).row == 0


def test_of_equal_matches_the_one_with_fewer_requests_is_followed():
    assert choose(make_candidates(3, prompt_blocks=10, device=[6, 6, 0], active=[9, 2, 0])).row == 1


@pytest.mark.parametrize(("blocks", "row"), [(3.0, 1), (3.1, 0)])
def test_a_match_must_be_longer_than_the_threshold(blocks, row):
    assert choose(make_candidates(2, prompt_blocks=10, device=[blocks, 0], active=[5, 4])).row == row


@pytest.mark.parametrize(
    ("active", "is_even"),
    [
        ([64, 0], True),  # 64 above is not more than 64
        ([65, 0], False),
        ([200, 134], True),  # 66 above, but not 1.5 times
        ([200, 133], False),
    ],
)
def test_loads_are_uneven_only_beyond_both_thresholds(active, is_even):
    choice = choose(make_candidates(2, prompt_blocks=10, device=[10, 0], active=active))
    assert choice.row == (0 if is_even else 1)
    assert ("uneven" in choice.reason) is not is_even


def test_thresholds_are_parameters():
    candidates = make_candidates(2, prompt_blocks=10, device=[4, 0], active=[40, 0])
    assert choose(candidates).row == 0
    assert choose(candidates, cache_threshold=0.5).row == 1
    assert choose(candidates, balance_abs_threshold=32).row == 1


def test_an_idle_fleet_without_matches_is_filled_evenly():
    rows = Counter(choose(make_candidates(4, prompt_blocks=10), seed).row for seed in range(800))
    assert all(140 < rows[row] < 260 for row in range(4))


def test_an_empty_prompt_matches_nobody():
    assert choose(make_candidates(2, active=[1, 0])).row == 1
