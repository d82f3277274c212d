"""WebSocket tunnels: once a worker has switched protocols, bytes pass both ways unread.

The handshake goes to a worker as any request does, and the answer of one that declines is relayed as any
answer is. When it agrees, both connections get new protocols in the place of their own: the two ends of a
tunnel, each of which writes what the other reads and is not read while the other is slow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from router.client_connection import ClientConnection
from router.errors import RouterError, WorkerTimeout, WorkerUnavailable
from router.limits import RelayLimits
from router.relay import Relay
from router.wire import http1
from router.wire.endpoints import Protocol
from router.wire.http1 import ResponseHead
from router.wire.websocket import SWITCH_LINES
from router.worker_connection import WorkerConnection


class Handshake(Relay):
    """A relay whose worker may switch protocols; then it ends with the tunnel."""

    __slots__ = ("_tunnel",)

    def start(self, connection: WorkerConnection, head: bytes, body: bytes) -> None:
        self._tunnel: Tunnel | None = None
        connection.switched = self._switched
        super().start(connection, head, body)

    def _switched(self, head: ResponseHead, rest: bytes) -> None:
        """The worker agrees; `rest` came behind its answer."""
        client, worker = self._client, self._worker
        assert worker is not None
        if client.transport.is_closing():
            worker.abort()
            return
        self._observer.began(b"", self._clock())
        self.response = head
        self.committed = self.begun = client.answer_begun = client.close_after = True
        self._tunnel = Tunnel(client, worker, self._ended, self._limits, self._clock)
        lines = (http1.status_line(head.status, head.reason), head.forward, self._extra_lines, SWITCH_LINES)
        self._tunnel.open(to_client=b"".join((*lines, b"\r\n", rest)), to_worker=client.take_early())

    def _ended(self, error: RouterError | None) -> None:
        if self._done.done():
            return
        if error is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(error)

    def check(self, now: float) -> None:
        if self._tunnel is not None:
            self._tunnel.check(now)
        else:
            super().check(now)

    def give_up(self, error: RouterError) -> None:
        if self._tunnel is not None:
            self._tunnel.end(error)
        else:
            super().give_up(error)

    def cut_short(self, error: RouterError, protocol: Protocol) -> bool:
        """A tunnel has no place for an error. Closing tells: a WebSocket in order ends with a Close frame."""
        return False if self._tunnel is not None else super().cut_short(error, protocol)


class Tunnel:
    """Between a client and a worker. `ended` is called at most once, with what broke it off or None.

    It closes neither connection at its end: that is for those who began with them.
    """

    __slots__ = ("_client", "_client_end", "_ended", "_limits", "_worker_end", "clock", "last_at")

    def __init__(
        self,
        client: ClientConnection,
        worker: WorkerConnection,
        ended: Callable[[RouterError | None], None],
        limits: RelayLimits,
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._client_end = TunnelEnd(self, client, client.transport)
        self._worker_end = TunnelEnd(self, worker, worker.transport)
        self._ended: Callable[[RouterError | None], None] | None = ended
        self._limits = limits
        self.clock = clock
        self.last_at = clock()
        """When bytes came last, from either side."""

    def open(self, *, to_client: bytes, to_worker: bytes) -> None:
        """Take the connections over; first of all they get these bytes."""
        client, worker = self._client_end, self._worker_end
        client.join(worker)
        worker.join(client)
        client.transport.resume_reading()  # before a write may pause it again
        if self._client.is_paused:
            client.pause_writing()
        client.transport.write(to_client)
        if to_worker:
            worker.transport.write(to_worker)

    def end(self, error: RouterError | None = None) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            ended(error)

    def check(self, now: float) -> None:
        """Enforce the deadline that is running. There is none for a tunnel as a whole."""
        limits = self._limits
        client_paused, worker_paused = self._client_end.paused_at, self._worker_end.paused_at
        if client_paused is not None:
            if now - client_paused > limits.client_write_seconds:
                self._client.abort("slow")
        elif self._client_end.has_ended or self._worker_end.has_ended:
            if self._is_done() or now - self.last_at > limits.linger_seconds:
                self.end()
        elif worker_paused is not None and now - worker_paused > limits.idle_seconds:
            self._time_out(f"The worker took no bytes for {limits.idle_seconds:g} s")
        elif now - self.last_at > limits.idle_seconds:
            self._time_out(f"Neither side sent a byte for {limits.idle_seconds:g} s")

    def _time_out(self, message: str) -> None:
        self.end(WorkerTimeout(message, code="idle_timeout"))

    # The ends' side

    def half_closed(self, end: TunnelEnd) -> None:
        """One side sends no more. The other is told, and may finish; TLS knows no half of a close."""
        other = end.peer.transport
        if other.is_closing() or not other.can_write_eof():
            self.end()
            return
        other.write_eof()
        if self._is_done():
            self.end()

    def _is_done(self) -> bool:
        """Both have ended, and nothing is left for the worker, whose connection is not closed but aborted."""
        both_ended = self._client_end.has_ended and self._worker_end.has_ended
        return both_ended and not self._worker_end.transport.get_write_buffer_size()

    def lost(self, end: TunnelEnd) -> None:
        """A connection is gone. A client's is missed by those who serve it."""
        if end is self._worker_end:
            in_order = end.has_ended or end.peer.has_ended
            self.end(None if in_order else WorkerUnavailable("The connection to the worker was lost"))


class TunnelEnd(asyncio.Protocol):
    """One side. `owner` is the protocol that its connection began with, and is told when it is lost."""

    __slots__ = ("_owner", "_tunnel", "has_ended", "paused_at", "peer", "transport")

    peer: TunnelEnd

    def __init__(self, tunnel: Tunnel, owner: asyncio.Protocol, transport: asyncio.Transport) -> None:
        self._tunnel = tunnel
        self._owner = owner
        self.transport = transport
        self.has_ended = False
        """It sends no more."""
        self.paused_at: float | None = None
        """Since when it takes bytes more slowly than they come, while it does."""

    def join(self, peer: TunnelEnd) -> None:
        self.peer = peer
        self.transport.set_protocol(self)

    def data_received(self, data: bytes) -> None:
        self._tunnel.last_at = self._tunnel.clock()
        if not self.peer.transport.is_closing():
            self.peer.transport.write(data)

    def eof_received(self) -> bool:
        """Returns whether the connection stays open, which TLS does not allow."""
        if not self.has_ended:
            self.has_ended = True
            self._tunnel.last_at = self._tunnel.clock()
            self._tunnel.half_closed(self)
        return self.transport.can_write_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.connection_lost(exc)
        self._tunnel.lost(self)

    def pause_writing(self) -> None:
        self.paused_at = self._tunnel.clock()
        self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        self.paused_at = None
        self._tunnel.last_at = self._tunnel.clock()  # the other side was not the silent one
        if not self.peer.has_ended:
            self.peer.transport.resume_reading()
