"""random, least_loaded, power_of_two."""

import random
from collections import Counter

from policies.least_loaded import LeastLoaded
from policies.power_of_two import PowerOfTwo
from policies.uniform import Uniform
from tests.support.columns import REQUEST, make_candidates


def draws(policy, candidates, num=4000):
    rng = random.Random(7)
    return Counter(policy.choose(REQUEST, candidates, rng).row for _ in range(num))


def test_random_is_uniform():
    rows = draws(Uniform(), make_candidates(4, active=[9, 0, 0, 0]))
    assert all(880 < count < 1120 for count in rows.values())


def test_least_loaded_takes_the_fewest_requests():
    choice = LeastLoaded().choose(REQUEST, make_candidates(3, active=[2, 1, 4]), random.Random(0))
    assert (choice.row, list(choice.costs)) == (1, [2, 1, 4])


def test_least_loaded_spreads_over_an_idle_fleet():
    rows = draws(LeastLoaded(), make_candidates(4))
    assert all(880 < count < 1120 for count in rows.values())


def test_power_of_two_never_takes_the_worst_of_three():
    rows = draws(PowerOfTwo(), make_candidates(3, active=[1, 5, 2]))
    assert set(rows) == {0, 2}
    # Row 0 is drawn in two of three pairs and wins both.
    assert 0.63 < rows[0] / 4000 < 0.70


def test_power_of_two_favours_nobody_among_equals():
    rows = draws(PowerOfTwo(), make_candidates(4, active=[3, 3, 3, 3]))
    assert all(880 < count < 1120 for count in rows.values())
