from __future__ import annotations

from loadgen.sim.clients import ClosedLoop, OpenLoop, chains_of
from loadgen.traces import TraceRequest


def requests():
    def request(at, session="", think=0.0):
        return TraceRequest(at, 10, 1, [], session, think)

    return [request(4.0), request(6.0, "a"), request(8.0), request(9.0, "a", 3.0), request(10.0, "b")]


def test_a_session_is_one_chain():
    assert list(chains_of(requests())) == [[0], [1, 3], [2], [4]]


def test_an_open_loop_begins_chains_at_their_times_and_thinks_between():
    clients = OpenLoop(requests(), rate_scale=2.0)
    assert clients.begin() == [(0.0, 0), (1.0, 1), (2.0, 2), (3.0, 4)]
    assert clients.answered(0, 50.0) is None
    assert clients.answered(1, 50.0) == (53.0, 3)
    assert clients.answered(3, 60.0) is None


def test_a_closed_loop_goes_on_at_once():
    clients = ClosedLoop(requests(), concurrency=2)
    assert clients.begin() == [(0.0, 0), (0.0, 1)]
    assert clients.answered(1, 5.0) == (5.0, 3)
    assert clients.answered(0, 6.0) == (6.0, 2)
    assert clients.answered(2, 7.0) == (7.0, 4)
    assert clients.answered(3, 8.0) is None
    assert clients.answered(4, 9.0) is None


def test_more_clients_than_work():
    assert len(ClosedLoop(requests(), concurrency=99).begin()) == 4
