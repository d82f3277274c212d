from router.core.recent import RecentDecisions, ServedLast
from tests.support.fleets import make_core, request, silent


def decision(request_id, attempt=0):
    core = make_core([silent("a")], "random")
    return core.route(request(request_id), None, now=0.0, attempt=attempt)


def test_the_last_decisions_newest_first_and_by_id():
    recent = RecentDecisions(capacity=2)
    made = [decision(f"r{number}") for number in range(3)]
    for each in made:
        recent.add(each)
    assert recent.latest() == [made[2], made[1]]
    assert recent.get("r2") is made[2]
    assert recent.get("r0") is None


def test_an_id_means_its_latest_attempt_while_that_is_kept():
    recent = RecentDecisions(capacity=2)
    first, second = decision("r", 0), decision("r", 1)
    for each in (first, second, decision("other")):
        recent.add(each)
    assert recent.get("r") is second
    recent.add(decision("another"))
    assert recent.get("r") is None


def test_the_deepest_known_prefix_names_the_worker():
    served = ServedLast()
    served.note([1, 2], "a")
    served.note([1, 2, 3], "b")
    assert served.find([1, 2, 3, 4]) == "b"
    assert served.find([1, 2, 9]) == "a"
    assert served.find([1, 9]) is None
    assert served.find([]) is None


def test_the_same_prefix_means_the_last_worker():
    served = ServedLast()
    served.note([1], "a")
    served.note([1], "b")
    assert served.find([1]) == "b"


def test_the_least_recently_noted_prefix_is_forgotten():
    served = ServedLast(capacity=2)
    for chain, worker_id in (([1], "a"), ([2], "b"), ([1], "a"), ([3], "c")):
        served.note(chain, worker_id)
    assert [served.find([block]) for block in (1, 2, 3)] == ["a", None, "c"]


def test_the_search_of_a_long_prompt_is_bounded(monkeypatch):
    monkeypatch.setattr("router.core.recent.PREFIX_SEARCH_BLOCKS", 3)
    served = ServedLast()
    served.note([0], "a")
    assert served.find([0, 1, 2]) == "a"
    assert served.find([0, 1, 2, 3]) is None


def test_a_prefix_is_forgotten_only_for_the_worker_that_did_not_serve_it():
    served = ServedLast()
    served.note([1, 2], "a")
    served.forget([1, 2], "b")
    served.forget([1], "a")
    assert served.find([1, 2]) == "a"
    served.forget([1, 2], "a")
    served.forget([], "a")
    assert served.find([1, 2]) is None
