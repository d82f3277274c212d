import random
from collections import Counter

import pytest

from policies.session import Session
from policies.types import RoutingRequest
from tests.support.columns import MODEL, make_candidates

IDS = ["a", "b", "c", "d"]


def worker_of(session, ids=IDS, seed=0, **columns):
    request = RoutingRequest(id="r", model=MODEL, session=session)
    candidates = make_candidates(len(ids), ids=ids, **columns)
    choice = Session().choose(request, candidates, random.Random(seed))
    return candidates.workers[choice.row].id


def test_a_session_stays_whatever_is_held_and_however_busy_it_is():
    for number in range(50):
        first = worker_of(f"s{number}")
        row = IDS.index(first)
        busy = [9 * (each == row) for each in range(4)]
        assert worker_of(f"s{number}", active=busy, device=[7 - each for each in busy], seed=number) == first


def test_the_order_of_workers_does_not_matter():
    assert all(worker_of(f"s{n}") == worker_of(f"s{n}", IDS[::-1]) for n in range(50))


def test_sessions_are_spread_evenly():
    counts = Counter(worker_of(f"session {number}") for number in range(4000))
    assert all(900 < counts[name] < 1100 for name in IDS)


def test_keys_that_begin_alike_are_different_keys():
    """Where keys were matched by their beginning, nearly nine in ten of such names met on one worker."""
    counts = Counter(worker_of(f"session-{'1' * number}") for number in range(1, 200))
    assert max(counts.values()) < 80


@pytest.mark.parametrize("gone", IDS)
def test_when_a_worker_leaves_its_own_sessions_move_alone(gone):
    left = [name for name in IDS if name != gone]
    for number in range(200):
        before = worker_of(f"s{number}")
        assert before == gone or worker_of(f"s{number}", left) == before


def test_the_hash_is_the_same_on_every_gateway():
    assert [worker_of(f"s{number}") for number in range(8)] == ["a", "a", "b", "b", "d", "c", "a", "a"]


@pytest.mark.parametrize("session", ["", "\ud800", "ü" * 1000, "a\0b"])
def test_any_text_is_a_key(session):
    assert worker_of(session) == worker_of(session, seed=3)


def test_without_a_session_the_fewest_requests_decide():
    assert worker_of(None, active=[3, 2, 0, 4]) == "c"
