"""One request to one worker over one connection: relayed to the client, or collected.

Which worker, and what follows from a failure, is decided in `proxy` and `legs`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, Protocol

from policies.types import Worker, WorkerId
from router.auth import ClientKeys
from router.call import Call
from router.collector import Collector
from router.core.health import HealthSign
from router.core.routing import RoutingCore
from router.errors import WorkerError, WorkerTimeout, WorkerUnavailable
from router.hand_over import Leg
from router.limits import RelayLimits
from router.relay import Relay
from router.upstream import Upstream, WorkerPool
from router.wire.http1 import ResponseHead
from router.wire.websocket import SWITCH_LINES
from router.worker_connection import WorkerConnection


class Opened(NamedTuple):
    """A connection that nobody else uses, and the pool that it returns to behind a whole answer. `is_used`:
    it has carried another exchange, and idled since."""

    pool: WorkerPool
    connection: WorkerConnection
    is_used: bool = False


class Suspects(Protocol):
    """Who is told of workers that can't be reached."""

    def suspect(self, worker_id: WorkerId) -> None: ...


class Exchanges:
    """`via`: what this gateway is called in the requests that it sends."""

    def __init__(
        self,
        *,
        core: RoutingCore,
        upstream: Upstream,
        client_keys: ClientKeys,
        suspects: Suspects,
        limits: RelayLimits,
        clock: Callable[[], float],
        via: bytes,
    ) -> None:
        self._core = core
        self._upstream = upstream
        self._client_keys = client_keys
        self._suspects = suspects
        self._limits = limits
        self._clock = clock
        self._via = via

    async def relay(self, call: Call, worker: Worker) -> None:
        """The client's request as it came. On a connection that is open already if there is one. If the
        worker has just closed that one (both sides time idle connections), the request goes over a new one,
        which is no retry."""
        pool = self._upstream.pool(worker)
        connection = pool.take_idle()
        if connection is not None:
            try:
                await self._relay_over(call, pool, connection, None)
                return
            except WorkerUnavailable:
                if not connection.is_silent:
                    raise
        await self._relay_over(call, pool, await self._connect(worker, pool), None)

    async def open(self, worker: Worker) -> Opened:
        """A new connection, for a leg that has to arrive: one that idled may have been closed just now."""
        pool = self._upstream.pool(worker)
        return Opened(pool, await self._connect(worker, pool))

    async def take(self, worker: Worker) -> Opened:
        """An open connection, or a new one."""
        pool = self._upstream.pool(worker)
        connection = pool.take_idle()
        return Opened(pool, connection, True) if connection is not None else await self.open(worker)

    async def collect(self, call: Call, worker: Worker, leg: Leg) -> tuple[ResponseHead, bytes]:
        """The answer to a leg that may be sent again. Raises WorkerError."""
        pool = self._upstream.pool(worker)
        connection = pool.take_idle()
        if connection is not None:
            try:
                return await self.collected(self.send(call, Opened(pool, connection), leg))
            except WorkerUnavailable:
                if not connection.is_silent:
                    raise
        return await self.collected(self.send(call, await self.open(worker), leg))

    def send(self, call: Call, opened: Opened, leg: Leg) -> Collector:
        """Whoever gets the collector waits for its answer, or aborts it."""
        collector = Collector()
        head = self._head(call, opened.pool, leg)
        collector.start(opened.connection, call.head.method, head, leg.body)
        return collector

    async def collected(self, collector: Collector) -> tuple[ResponseHead, bytes]:
        """Raises WorkerError."""
        try:
            async with asyncio.timeout(self._limits.first_byte_seconds):
                body = await collector.ended()
        except TimeoutError:
            raise WorkerTimeout(
                f"The prefill worker did not answer within {self._limits.first_byte_seconds:g} s",
                code="first_byte_timeout",
            ) from None
        finally:
            collector.abort()
        assert collector.response is not None
        return collector.response, body

    async def relay_over(self, call: Call, opened: Opened, leg: Leg) -> None:
        await self._relay_over(call, opened.pool, opened.connection, leg)

    async def _connect(self, worker: Worker, pool: WorkerPool) -> WorkerConnection:
        try:
            return await pool.connect()
        except WorkerError:
            self._core.observe_health(worker.id, HealthSign.CONNECT_FAILED, now=self._clock())
            self._suspects.suspect(worker.id)
            raise

    async def _relay_over(
        self, call: Call, pool: WorkerPool, connection: WorkerConnection, leg: Leg | None
    ) -> None:
        relay = call.new_relay(refuses_errors=leg is not None)
        try:
            self._start(relay, call, pool, connection, leg)
            await relay.ended()
        finally:
            relay.abort()
        call.succeeded(relay, self._clock())

    def _start(
        self, relay: Relay, call: Call, pool: WorkerPool, connection: WorkerConnection, leg: Leg | None
    ) -> None:
        head = self._head(call, pool, leg)
        if leg is None:
            relay.start(connection, head, call.request.body)
        else:
            relay.start(connection, head, leg.body)
            leg.body = b""  # never sent again, and a long stream holds on to no body

    def _head(self, call: Call, pool: WorkerPool, leg: Leg | None) -> bytes:
        """The client's head, but for what concerns one connection, keys and the length."""
        head, request = call.head, call.request
        lines = [head.method, b" ", head.target, b" HTTP/1.1\r\n", pool.lines, head.forward]
        lines.append(self._client_keys.forwarded(head, has_worker_key=pool.has_key))
        if leg is None and not pool.names_rank:  # legs find each other by ranks that the client can't know
            lines.append(head.rank_lines)
        via = b"%b, %b" % (head.via, self._via) if head.via else self._via
        request_id, body = (call.request_id, request.body) if leg is None else (leg.request_id, leg.body)
        lines += (b"x-request-id: ", request_id, b"\r\nx-kvgate-via: ", via, b"\r\n")
        if head.is_chunked or head.content_length is not None:
            lines.append(b"content-length: %d\r\n" % len(body))
        if head.is_websocket:
            lines.append(SWITCH_LINES)
        lines.append(b"\r\n")
        return b"".join(lines)
