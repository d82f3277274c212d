"""Pools of worker connections."""

from __future__ import annotations

import asyncio
import gc
from weakref import ref

import pytest

from policies.types import Worker
from router.errors import WorkerConnectTimeout
from router.limits import RelayLimits
from router.upstream import Upstream
from router.worker_connection import WorkerConnection
from tests.support.dialing import plain_dialer
from tests.support.fake_transport import FakeTransport
from tests.support.raw_worker import json_answer
from tests.support.sinks import NullSink
from tests.support.waiting import eventually

WORKER = Worker(id="w", url="http://[::1]:8001")


class Setup:
    """An upstream whose time is `now`."""

    def __init__(self, key: str | None = None) -> None:
        self.now = 0.0
        self.key = key
        limits, dialer = RelayLimits(worker_idle_seconds=4), plain_dialer()
        self.upstream = Upstream(limits, lambda: self.now, dialer, lambda worker: self.key)

    def connection(self) -> WorkerConnection:
        connection = WorkerConnection(self.upstream.pool(WORKER).put)
        connection.connection_made(FakeTransport())
        return connection

    def exchange(self, connection: WorkerConnection) -> None:
        connection.send(NullSink(), b"POST", b"HEAD", b"")
        connection.data_received(json_answer())


def test_last_used_is_reused_first() -> None:
    setup = Setup()
    first, second = setup.connection(), setup.connection()
    for connection in (first, second):
        setup.exchange(connection)
    pool = setup.upstream.pool(WORKER)
    assert [pool.take_idle(), pool.take_idle(), pool.take_idle()] == [second, first, None]


def test_idle_connections_are_closed_before_the_worker_does() -> None:
    setup = Setup()
    old, young = setup.connection(), setup.connection()
    setup.exchange(old)
    setup.now = 3.0
    setup.exchange(young)
    setup.now = 5.0
    setup.upstream.check(setup.now)
    assert (old.transport.is_closing(), young.transport.is_closing()) == (True, False)
    setup.now = 8.0
    assert setup.upstream.pool(WORKER).take_idle() is None
    assert young.transport.is_closing()


def test_dead_connections_are_not_handed_out() -> None:
    setup = Setup()
    dead = setup.connection()
    setup.exchange(dead)
    dead.eof_received()
    dead.transport.close()
    assert setup.upstream.pool(WORKER).take_idle() is None


def test_pool_lives_as_long_as_its_connections() -> None:
    """One that is in use comes back to it, also when the pool was empty in the meantime."""
    setup = Setup()
    connection = setup.connection()
    setup.upstream.check(setup.now)
    setup.exchange(connection)
    assert setup.upstream.num_idle == 1
    setup.upstream.close()
    pool = ref(setup.upstream.pool(WORKER))
    assert pool() is not None
    del connection
    gc.collect()
    assert pool() is None


def test_what_was_connecting_when_deadlines_were_looked_at_comes_back_to_its_pool() -> None:
    setup = Setup()
    pool = setup.upstream.pool(WORKER)
    setup.upstream.check(setup.now)
    connection = WorkerConnection(pool.put)
    connection.connection_made(FakeTransport())
    setup.exchange(connection)
    assert setup.upstream.pool(WORKER).take_idle() is connection


def test_a_worker_that_comes_back_with_another_key_is_shown_that_one() -> None:
    setup = Setup("old")
    in_use = setup.connection()
    setup.key = "new"
    assert b"Bearer new" in setup.upstream.pool(WORKER).lines
    setup.exchange(in_use)
    assert setup.upstream.pool(WORKER).take_idle() is None, "the old connection is the old pool's"


def test_lines_of_every_request_to_a_worker() -> None:
    assert Setup().upstream.pool(WORKER).lines == b"host: [::1]:8001\r\n"
    assert Setup("k").upstream.pool(WORKER).lines == b"host: [::1]:8001\r\nauthorization: Bearer k\r\n"


class SilentDialer:
    """Connects when the test says so, which may be never."""

    def __init__(self) -> None:
        self.dialed: list[asyncio.Future[WorkerConnection]] = []

    async def dial(self, address: object, protocol: object) -> WorkerConnection:
        self.dialed.append(asyncio.get_running_loop().create_future())
        return await self.dialed[-1]


async def connecting(setup: Setup) -> tuple[asyncio.Task[WorkerConnection], asyncio.Future[WorkerConnection]]:
    """A task that is connecting, and what it waits for."""
    dialer = SilentDialer()
    upstream = Upstream(RelayLimits(connect_seconds=5), lambda: setup.now, dialer, lambda worker: None)
    setup.upstream = upstream
    task = asyncio.ensure_future(upstream.pool(WORKER).connect())
    await eventually(lambda: dialer.dialed)
    return task, dialer.dialed[0]


async def test_connecting_has_its_time() -> None:
    setup = Setup()
    task, dialed = await connecting(setup)
    setup.upstream.check(4.9)
    await asyncio.sleep(0)
    assert not dialed.cancelled()
    setup.upstream.check(5.0)
    with pytest.raises(WorkerConnectTimeout):
        await task
    assert dialed.cancelled()
    assert task.cancelling() == 0
    setup.upstream.check(6.0)


async def test_client_that_leaves_while_connecting_is_gone_even_if_time_is_over_as_well() -> None:
    for times_out in (False, True):
        setup = Setup()
        task, dialed = await connecting(setup)
        if times_out:
            setup.upstream.check(5.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert dialed.cancelled()


async def test_connection_that_was_made_in_time_is_not_given_up_later() -> None:
    setup = Setup()
    task, dialed = await connecting(setup)
    dialed.set_result(setup.connection())
    connection = await task
    setup.upstream.check(6.0)
    assert not connection.transport.is_closing()
