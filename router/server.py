"""The public port: accepting, accounting of connections and collected bytes, deadlines, drain.

What happens on one connection lives in `client_connection`; what happens with one request in `proxy`.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Protocol

from router.client_connection import ClientConnection
from router.errors import Overloaded, RouterError
from router.limits import (
    DESCRIPTORS_SPARE,
    LISTEN_BACKLOG,
    SHUT_DOWN_SECONDS,
    SURPLUS_CONNECTIONS_MAX,
    RelayLimits,
)
from router.request import Request
from router.tls_listener import TlsListener, listening_sockets
from router.wire import http1


class Handler(Protocol):
    """Who answers requests."""

    def admit(self, request: Request, *, is_surplus: bool) -> None:
        """Called with the head alone, before its body is collected; raises RouterError to refuse it.
        `is_surplus`: it came over a connection beyond the limit."""

    async def handle(self, request: Request, client: ClientConnection) -> None:
        """Answer on `client`, wholly. Cancelled when the client leaves."""

    def failed(self, error: RouterError) -> None:
        """An error of the gateway's own was answered: count it."""

    def refused(self, request: Request, error: RouterError) -> None:
        """It was answered with this error and is not handled: log it."""

    def crashed(self) -> None:
        """`handle` failed through a defect."""


class Server:
    """Serves `handler` on one address. `clock` is monotonic seconds."""

    def __init__(
        self,
        handler: Handler,
        *,
        limits: RelayLimits,
        clock: Callable[[], float],
        max_connections: int | None = None,
        check: Callable[[float], None] | None = None,
    ) -> None:
        """`check` is called with the time whenever deadlines are looked at (idle worker connections)."""
        self.handler = handler
        self.limits = limits
        self.clock = clock
        self.is_draining = False
        self._check_more = check
        self._max_connections = max_connections if max_connections is not None else default_max_connections()
        self._connections: set[ClientConnection] = set()
        self._collected_bytes = 0
        self._listener: asyncio.Server | TlsListener | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Event | None = None

    @property
    def num_connections(self) -> int:
        return len(self._connections)

    @property
    def collected_bytes(self) -> int:
        """Request bodies held now."""
        return self._collected_bytes

    @property
    def port(self) -> int:
        """The port that is listened on; useful when 0 was asked for."""
        assert self._listener is not None, "not started"
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        """`::` is every address of the machine, IPv4 too. With `tls` connections begin with a handshake, of
        which a connection here hears when it is done. Raises OSError when the address cannot be had."""
        if tls is not None:
            self._listener = await self._listen_tls(host, port, tls)
        else:
            listen = partial(
                asyncio.get_running_loop().create_server,
                lambda: ClientConnection(self),
                backlog=LISTEN_BACKLOG,
            )
            if host == "::":
                self._listener = await listen(sock=_dual_stack_socket(port))
            else:
                self._listener = await listen(host=host, port=port)
        self._schedule_check()

    async def _listen_tls(self, host: str, port: int, tls: ssl.SSLContext) -> TlsListener:
        if host == "::":
            sockets = [_dual_stack_socket(port)]
            sockets[0].setblocking(False)
        else:
            sockets = await listening_sockets(host, port, LISTEN_BACKLOG)
        return TlsListener(sockets, tls, lambda: ClientConnection(self), self._has_room, self.limits)

    def _has_room(self, num_handshakes: int) -> bool:
        """Whether one more handshake may begin: those under way count as connections."""
        num_all = len(self._connections) + num_handshakes
        return num_all < self._max_connections + SURPLUS_CONNECTIONS_MAX

    async def drain(self, seconds: float) -> bool:
        """Accept no more, let answers end within `seconds`, end the rest with an error where it can still be
        told. True when all had ended."""
        self.is_draining = True
        if self._listener is not None:
            self._listener.close()
        for connection in list(self._connections):
            connection.close_if_idle()
        in_time = await self._wait_until_empty(seconds)
        for connection in list(self._connections):
            connection.shut_down()
        await self._wait_until_empty(SHUT_DOWN_SECONDS)
        self.stop()
        await self._wait_until_empty(self.limits.linger_seconds)
        return in_time

    def stop(self) -> None:
        """At once: cut every connection."""
        self.is_draining = True
        if self._listener is not None:
            self._listener.close()
        for connection in list(self._connections):
            connection.abort("drain")
        if self._timer is not None and not self._connections:
            self._timer.cancel()

    async def _wait_until_empty(self, seconds: float) -> bool:
        if not self._connections:
            return True
        self._emptied = asyncio.Event()
        try:
            async with asyncio.timeout(seconds):
                await self._emptied.wait()
        except TimeoutError:
            return False
        return True

    # What connections report

    def opened(self, connection: ClientConnection) -> None:
        """Beyond the limit a connection has one request read, to be refused or to be told that the gateway
        lives; far beyond it, none."""
        self._connections.add(connection)
        num_surplus = len(self._connections) - self._max_connections
        connection.is_surplus = num_surplus > 0
        if num_surplus > SURPLUS_CONNECTIONS_MAX:
            error = Overloaded("Too many connections")
            self.handler.failed(error)
            connection.transport.write(
                http1.answer(error.status, error.body(), headers=error.headers, close=True)
            )
            connection.transport.close()

    def closed(self, connection: ClientConnection) -> None:
        self._connections.discard(connection)
        if not self._connections and self._emptied is not None:
            self._emptied.set()

    def hold(self, num_bytes: int) -> None:
        """Body bytes were collected. Raises Overloaded when all requests together hold too many."""
        self._collected_bytes += num_bytes
        if self._collected_bytes > self.limits.collected_bytes:
            raise Overloaded("The gateway holds too many request bodies")

    def release(self, request: Request) -> None:
        """The body is needed no longer; harmless when repeated."""
        self._collected_bytes -= request.num_bytes
        request.num_bytes = 0
        request.body = b""
        request.pieces = []

    # Deadlines

    def _schedule_check(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self.limits.check_seconds, self._check)

    def _check(self) -> None:
        """One timer for all connections: setting and cancelling one per request costs more than looking at
        each connection once a second."""
        now = self.clock()
        for connection in list(self._connections):
            connection.check(now)
        if self._check_more is not None:
            self._check_more(now)
        if not (self.is_draining and not self._connections):
            self._schedule_check()


def _dual_stack_socket(port: int) -> socket.socket:
    """The event loop's own sockets for `::` take IPv6 alone."""
    return socket.create_server(
        ("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=LISTEN_BACKLOG
    )


def default_max_connections() -> int:
    """Each request takes a client's and a worker's descriptor."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, (soft - DESCRIPTORS_SPARE) // 2)


def raise_descriptor_limit() -> None:
    """The soft limit (often 1,024) up to the hard one. Call once at start."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
