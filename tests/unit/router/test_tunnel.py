"""Tunnels on fake transports, where time and the order of things are exact."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from policies.types import Worker
from router.errors import RouterError, ShuttingDown, WorkerTimeout, WorkerUnavailable
from router.limits import RelayLimits
from router.tunnel import Tunnel, TunnelEnd
from router.upstream import Upstream
from router.worker_connection import WorkerConnection
from tests.support.dialing import plain_dialer
from tests.support.fake_transport import FakeTransport

LIMITS = RelayLimits()


@dataclass
class Client(asyncio.Protocol):
    """What a tunnel needs of a client's connection."""

    transport: FakeTransport = field(default_factory=FakeTransport)
    is_paused: bool = False
    cut_reason: str = ""
    is_lost: bool = False

    def abort(self, reason: str) -> None:
        self.cut_reason = reason

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True


class Full(FakeTransport):
    """Its buffer is full from the first write on."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        super().write(data)
        self.protocol.pause_writing()


class Setup:
    """An open tunnel. `now` is the time, `ends` what the end was told with."""

    def __init__(
        self,
        *,
        is_paused: bool = False,
        can_half_close: bool = True,
        worker: FakeTransport | None = None,
        early: bytes = b"",
    ) -> None:
        self.now = 0.0
        self.ends: list[RouterError | None] = []
        self.client, self.worker = Client(is_paused=is_paused), worker or FakeTransport()
        self.client.transport.can_half_close = self.worker.can_half_close = can_half_close
        upstream = Upstream(LIMITS, self.clock, plain_dialer(), lambda worker: None)
        pool = upstream.pool(Worker(id="w", url="http://w:1"))
        connection = WorkerConnection(pool.put)
        connection.connection_made(self.worker)
        self.tunnel = Tunnel(self.client, connection, self.ends.append, LIMITS, self.clock)
        self.tunnel.open(to_client=b"101", to_worker=early)

    def clock(self) -> float:
        return self.now

    @property
    def client_end(self) -> TunnelEnd:
        return self.client.transport.protocol

    @property
    def worker_end(self) -> TunnelEnd:
        return self.worker.protocol

    def check_at(self, now: float) -> None:
        self.now = now
        self.tunnel.check(now)


async def test_bytes_pass_both_ways() -> None:
    setup = Setup()
    setup.client_end.data_received(b"a")
    setup.worker_end.data_received(b"b")
    assert (setup.worker.written, setup.client.transport.written) == (b"a", b"101b")


async def test_bytes_for_a_connection_that_closes_are_dropped() -> None:
    setup = Setup()
    setup.client.transport.close()
    setup.worker_end.data_received(b"b")
    assert setup.client.transport.written == b"101"


@pytest.mark.parametrize("side", ["client", "worker"])
async def test_silence_of_both_sides_is_limited_and_bytes_from_either_prolong_it(side: str) -> None:
    setup = Setup()
    end = setup.client_end if side == "client" else setup.worker_end
    for at in (100.0, 200.0, LIMITS.request_seconds + 1):  # no tunnel is too old
        setup.now = at
        end.data_received(b"x")
        setup.check_at(at + LIMITS.idle_seconds)
    assert setup.ends == []
    setup.check_at(setup.now + 1)
    (error,) = setup.ends
    assert isinstance(error, WorkerTimeout)


async def test_silence_does_not_count_while_the_client_is_slow_but_slowness_is_limited() -> None:
    setup = Setup()
    setup.now = LIMITS.idle_seconds - 1
    setup.client_end.pause_writing()
    assert setup.worker.is_reading_paused
    setup.check_at(LIMITS.idle_seconds + 1)
    assert (setup.ends, setup.client.cut_reason) == ([], "")
    setup.client_end.resume_writing()
    assert not setup.worker.is_reading_paused
    setup.check_at(2 * LIMITS.idle_seconds)
    assert setup.ends == []
    setup.client_end.pause_writing()
    setup.check_at(setup.now + LIMITS.client_write_seconds + 1)
    assert setup.client.cut_reason == "slow"


async def test_worker_that_takes_nothing_is_given_up_although_it_talks() -> None:
    setup = Setup()
    setup.worker_end.pause_writing()
    assert setup.client.transport.is_reading_paused
    setup.now = LIMITS.idle_seconds
    setup.worker_end.data_received(b"x")
    setup.check_at(LIMITS.idle_seconds + 1)
    (error,) = setup.ends
    assert isinstance(error, WorkerTimeout)


async def test_client_that_was_slow_before_pauses_the_worker_from_the_start() -> None:
    setup = Setup(is_paused=True)
    assert setup.worker.is_reading_paused
    setup.client_end.resume_writing()
    assert not setup.worker.is_reading_paused


async def test_client_that_was_held_is_read_from_the_start_unless_the_worker_is_full() -> None:
    setup = Setup(early=b"x")
    assert (setup.worker.written, setup.client.transport.is_reading_paused) == (b"x", False)
    setup = Setup(early=b"x", worker=Full())
    assert setup.client.transport.is_reading_paused
    setup.worker_end.resume_writing()
    assert not setup.client.transport.is_reading_paused


async def test_end_of_both_sides_is_the_end() -> None:
    setup = Setup()
    assert setup.client_end.eof_received()
    assert setup.worker.is_half_closed
    assert setup.ends == []
    setup.worker_end.eof_received()
    setup.worker_end.connection_lost(None)
    assert setup.ends == [None]


async def test_last_bytes_for_the_worker_are_waited_for() -> None:
    setup = Setup()
    setup.worker_end.eof_received()
    setup.worker.num_unsent = 1
    setup.client_end.eof_received()
    setup.check_at(1.0)
    assert setup.ends == []
    setup.worker.num_unsent = 0
    setup.check_at(2.0)
    assert setup.ends == [None]


async def test_side_that_ended_is_not_read_again() -> None:
    setup = Setup()
    setup.client_end.pause_writing()
    setup.worker_end.eof_received()
    setup.client_end.resume_writing()
    assert setup.worker.is_reading_paused


@pytest.mark.parametrize("side", ["client", "worker"])
async def test_other_side_has_a_while_to_finish(side: str) -> None:
    setup = Setup()
    first, other = setup.client_end, setup.worker_end
    if side == "worker":
        first, other = other, first
    first.eof_received()
    setup.now = LIMITS.linger_seconds
    other.data_received(b"x")
    setup.check_at(2 * LIMITS.linger_seconds)
    assert setup.ends == []
    setup.check_at(2 * LIMITS.linger_seconds + 1)
    assert setup.ends == [None]


async def test_where_no_half_can_be_closed_one_end_is_the_end() -> None:
    setup = Setup(can_half_close=False)
    assert not setup.client_end.eof_received()
    assert setup.ends == [None]


async def test_lost_worker_breaks_the_tunnel_off() -> None:
    setup = Setup()
    setup.worker_end.connection_lost(ConnectionResetError())
    (error,) = setup.ends
    assert isinstance(error, WorkerUnavailable)


async def test_worker_lost_after_the_client_ended_broke_nothing_off() -> None:
    setup = Setup()
    setup.client_end.eof_received()
    setup.worker_end.connection_lost(ConnectionResetError())
    assert setup.ends == [None]


async def test_lost_client_is_told_to_those_who_serve_it() -> None:
    setup = Setup()
    setup.client_end.connection_lost(None)
    assert setup.client.is_lost
    assert setup.ends == []


async def test_end_is_told_once() -> None:
    setup = Setup()
    error = ShuttingDown()
    setup.tunnel.end(error)
    setup.worker_end.connection_lost(None)
    assert setup.ends == [error]
