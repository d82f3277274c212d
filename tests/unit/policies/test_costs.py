import random
from collections import Counter

import pytest

from policies.costs import cheapest, sample_by_temperature
from tests.support.columns import make_candidates


def test_the_worker_that_served_the_prefix_last_wins_a_tie_before_anything_else():
    candidates = make_candidates(3, held=[0, 9, 0], served_last_row=1)
    choice = cheapest(candidates, [1.0, 1.0, 1.0], random.Random(0))
    assert (choice.row, choice.reason) == (1, "lowest cost, tie: served this prefix last")


def test_having_served_last_does_not_outweigh_a_lower_cost():
    candidates = make_candidates(2, served_last_row=1)
    assert cheapest(candidates, [1.0, 1.1], random.Random(0)).row == 0


def test_then_the_fewest_blocks_held():
    candidates = make_candidates(3, held=[5, 3, 1], served_last_row=2)
    choice = cheapest(candidates, [1.0, 1.0, 2.0], random.Random(0))
    assert (choice.row, choice.reason) == (1, "lowest cost, tie: fewest blocks held")


def test_then_chance_evenly():
    candidates = make_candidates(4, held=[1, 1, 1, 0])
    rng = random.Random(3)
    rows = Counter(cheapest(candidates, [1.0, 1.0, 1.0, 2.0], rng).row for _ in range(3000))
    assert set(rows) == {0, 1, 2}
    assert min(rows.values()) > 900


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("row", [0, 1])
def test_a_cost_that_is_not_finite_is_refused(bad, row):
    costs = [1.0, 1.0]
    costs[row] = bad
    with pytest.raises(ValueError, match="not finite"):
        cheapest(make_candidates(2), costs, random.Random(0))
    with pytest.raises(ValueError, match="not finite"):
        sample_by_temperature(costs, 1.0, random.Random(0))


def test_sampling_extreme_costs_stays_finite_and_ordered():
    costs = [0.0, 1e12, 2e12]
    rng = random.Random(5)
    rows = Counter(sample_by_temperature(costs, 1.0, rng) for _ in range(9000))
    assert rows[0] > rows[1] > rows[2] > 0
