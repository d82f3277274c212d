import random
from collections import Counter

from policies.round_robin import RoundRobin
from tests.support.columns import REQUEST, make_candidates


def take(policy, ids):
    candidates = make_candidates(len(ids), ids=ids)
    row = policy.choose(REQUEST, candidates, random.Random(0)).row
    policy.placed(candidates.workers[row])
    return ids[row]


def test_each_in_turn():
    policy = RoundRobin()
    assert [take(policy, ["a", "b", "c"]) for _ in range(6)] == ["a", "b", "c"] * 2


def test_a_choice_alone_moves_no_turn():
    policy, candidates = RoundRobin(), make_candidates(2)
    rows = {policy.choose(REQUEST, candidates, random.Random(0)).row for _ in range(3)}
    assert rows == {0}


def test_the_order_of_rows_does_not_matter():
    policy = RoundRobin()
    assert [take(policy, ids) for ids in (["a", "b", "c"], ["c", "b", "a"], ["b", "a", "c"])] == [
        "a",
        "b",
        "c",
    ]


def test_a_worker_that_joins_gets_its_turn_at_once_and_no_more_than_others():
    policy = RoundRobin()
    for _ in range(5):
        take(policy, ["a", "b"])
    taken = [take(policy, ["a", "b", "c"]) for _ in range(6)]
    assert taken[0] == "c"
    assert Counter(taken) == {"a": 2, "b": 2, "c": 2}


def test_no_bunching_while_one_worker_is_left_out():
    policy = RoundRobin()
    taken = [take(policy, ["a", "c", "d"] if number % 2 else ["a", "b", "c", "d"]) for number in range(400)]
    assert max(Counter(taken).values()) - min(Counter(taken).values()) <= 1


def test_two_models_that_alternate_each_use_all_their_workers():
    policy = RoundRobin()
    taken = Counter(take(policy, ids) for _ in range(50) for ids in (["a1", "a2"], ["b1", "b2"]))
    assert set(taken.values()) == {25}


def test_memory_is_bounded_by_forgetting_the_longest_unused(monkeypatch):
    monkeypatch.setattr("policies.round_robin.TURNS_REMEMBERED", 2)
    policy = RoundRobin()
    for ids in (["a"], ["b"], ["c"]):
        take(policy, ids)
    assert [take(policy, ["a", "b", "c"]) for _ in range(2)] == ["a", "b"]
