"""One client's connection: its requests answered in order, each by one coroutine; deadlines; closing.

It knows nothing of workers: a `Handler` answers. Body bytes of an answer are written to `transport` by
whoever relays them; pausing and leaving are passed on to that relay.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, cast

from router.errors import ClientError, InternalError, RequestTimeout, RouterError, ShuttingDown
from router.limits import WRITE_BUFFER_HIGH, WRITE_BUFFER_LOW
from router.request import Request
from router.request_reader import RequestReader
from router.wire import http1

if TYPE_CHECKING:
    from router.server import Server

_logger = logging.getLogger("kvgate.client")

_NEVER = float("inf")


class Relay(Protocol):
    """What a connection tells the answer that is on its way."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def check(self, now: float) -> None: ...
    def give_up(self, error: RouterError) -> None: ...


class ClientConnection(asyncio.Protocol):
    """A RequestSink of its own reader."""

    __slots__ = (
        "_active", "_close_at", "_early", "_input_over", "_is_lingering", "_is_receiving", "_queue",
        "_queued_bytes", "_reader", "_server", "_task", "answer_begun", "close_after", "cut_reason",
        "is_paused", "is_surplus", "relay", "transport",
    )  # fmt: skip

    transport: asyncio.Transport

    def __init__(self, server: Server) -> None:
        self._server = server
        self._reader = RequestReader(self, server.limits, server.clock)
        self._is_receiving = True
        self._active: Request | None = None
        self._task: asyncio.Task[None] | None = None
        self._queue: deque[Request] = deque()
        self._queued_bytes = 0
        self._early = b""
        self._input_over = False
        self._is_lingering = False
        self._close_at = _NEVER
        self.is_surplus = False
        """It is beyond the limit of connections."""
        self.cut_reason = ""
        """Why we cut it ourselves; empty when the client left."""
        self.relay: Relay | None = None
        """The answer on its way, while there is one."""
        self.answer_begun = False
        """Bytes of the answer in hand were written."""
        self.is_paused = False
        """The client takes bytes more slowly than they come."""
        self.close_after = False
        """The answer's head said that the connection ends with it."""

    # The transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are of no asyncio class
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH, low=WRITE_BUFFER_LOW)
        self._close_at = self._server.clock() + self._server.limits.head_seconds
        self._server.opened(self)

    def data_received(self, data: bytes) -> None:
        if self._input_over:
            return
        if self._active is None:
            self._extend_deadline()
        self._reader.feed(data)
        if self._active is None and self._is_mid_request():
            self._extend_deadline()  # for what these bytes have begun

    def eof_received(self) -> None:
        """A client that closes its side has left, as nginx sees it: without this a worker would generate for
        nobody until the first write fails."""
        if self._active is not None:
            self.transport.abort()
            self._leave()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.closed(self)
        self._leave()
        for request in (self._active, self._reader.incoming, *self._queue):
            if request is not None:
                self._server.release(request)
        self._queue.clear()

    def pause_writing(self) -> None:
        self.is_paused = True
        if self.relay is not None:
            self.relay.pause()

    def resume_writing(self) -> None:
        self.is_paused = False
        if self.relay is not None:
            self.relay.resume()

    def _leave(self) -> None:
        self._input_over = True
        if self._task is not None:
            self._task.cancel()

    # The reader's side

    def head_arrived(self, request: Request, num_bytes: int) -> None:
        head, limits = request.head, self._server.limits
        assert head is not None
        try:
            self._server.handler.admit(request, is_surplus=self.is_surplus)
        except RouterError as error:
            if head.is_websocket or head.is_chunked or (head.content_length or 0) > limits.pipelined_bytes:
                raise
            request.error = error  # a small body is read, so that the connection can go on
        if self._active is not None:
            self._count_ahead(num_bytes)
        elif head.expects_continue:
            self.transport.write(http1.CONTINUE)

    def body_arrived(self, num_bytes: int) -> None:
        self._server.hold(num_bytes)
        if self._active is not None:
            self._count_ahead(num_bytes)

    def request_arrived(self, request: Request) -> None:
        if self._active is None:
            self._start(request)
        else:
            self._queue.append(request)

    def beyond_arrived(self, data: bytes) -> None:
        """Held for the tunnel. A client should wait until that is open; one that sends much is not read."""
        self._early += data
        if len(self._early) > self._server.limits.pipelined_bytes:
            self.transport.pause_reading()

    def take_early(self) -> bytes:
        """What came before the tunnel was open."""
        early, self._early = self._early, b""
        return early

    def refused(self, error: RouterError) -> None:
        """No more requests can be read here; the error is answered in its turn."""
        self._input_over = True
        request = Request(None, self._server.clock(), error)
        if self._reader.incoming is not None:
            request.seen_head = self._reader.incoming.head
            self._server.release(self._reader.incoming)
        if not isinstance(error, _TooFarAhead):
            self.request_arrived(request)

    def _count_ahead(self, num_bytes: int) -> None:
        """Requests sent before the answer in hand ended: held, since reading must go on, but bounded."""
        self._queued_bytes += num_bytes
        if self._queued_bytes > self._server.limits.pipelined_bytes:
            raise _TooFarAhead("Too many requests are waiting on one connection")

    # Requests in order

    def _start(self, request: Request) -> None:
        self._active = request
        self._close_at = _NEVER
        self.answer_begun = False
        if request.error is not None:
            self.respond_error(request.error, close=request.head is None)
            self._server.handler.refused(request, request.error)
            self._server.release(request)
            self._answered()
            return
        # Not through start_task: this connection holds the task and `_run` logs what fails, so a request
        # need not pay for a callback at its end.
        self._task = asyncio.get_running_loop().create_task(self._run(request))

    async def _run(self, request: Request) -> None:
        try:
            await self._server.handler.handle(request, self)
        except Exception:
            _logger.exception("a request failed through a defect")
            self._server.handler.crashed()
            if not self.answer_begun:
                self.respond_error(InternalError("The gateway failed"), close=True)
            else:
                self.transport.abort()
        finally:
            self._server.release(request)
            self._answered()

    def _answered(self) -> None:
        """On to the next request, or wait for one, or close."""
        self._active = self._task = self.relay = None
        self._is_receiving = False
        if self.transport.is_closing():
            return
        if self.close_after:
            self._close()
        elif self._queue:
            self._start_next()
        elif self._input_over or self._server.is_draining:
            self._close()
        elif self._is_mid_request():
            self._extend_deadline()
            self._continue()
        else:
            self._close_at = self._server.clock() + self._server.limits.keep_alive_seconds

    def _start_next(self) -> None:
        request = self._queue.popleft()
        if not self._queue:
            self._queued_bytes = 0
        self._start(request)

    def _continue(self) -> None:
        """A request that asked for leave to send its body while another one was answered."""
        request = self._reader.incoming
        if request is not None and request.head is not None and request.head.expects_continue:
            self.transport.write(http1.CONTINUE)

    def release(self, request: Request) -> None:
        """Its answer has begun, so the request is never sent again: let go of its body."""
        self._server.release(request)

    # Answers of the gateway's own

    def respond_error(
        self, error: RouterError, *, close: bool = False, headers: Sequence[tuple[str, str]] = ()
    ) -> None:
        self._server.handler.failed(error)
        self.respond(error.status, error.body(), headers=(*error.headers, *headers), close=close)

    def respond(
        self,
        status: int,
        body: bytes,
        *,
        content_type: str = "application/json",
        headers: Sequence[tuple[str, str]] = (),
        close: bool = False,
    ) -> None:
        """A whole answer to the request in hand."""
        if self.transport.is_closing():
            return  # reset, which is about to be told
        head = self._active.head if self._active is not None else None
        self.answer_begun = True
        self.close_after = close or self.ends_after_answer()
        self.transport.write(
            http1.answer(
                status,
                body,
                content_type=content_type,
                headers=headers,
                close=self.close_after,
                without_body=head is not None and head.method == b"HEAD",
            )
        )

    def ends_after_answer(self) -> bool:
        """Whether the answer's head has to say `Connection: close`."""
        request = self._active
        keeps = request is not None and request.head is not None and request.head.keep_alive
        is_last = self.is_surplus or self._server.is_draining
        return not keeps or is_last or (self._input_over and not self._queue)

    # Closing and deadlines

    def _close(self) -> None:
        """After a refusal close our side only: the client reads the answer before it sees a reset."""
        if self._input_over and not self._is_lingering and self.transport.can_write_eof():
            self._is_lingering = True
            self.transport.write_eof()
            self._close_at = self._server.clock() + self._server.limits.linger_seconds
            return
        self._input_over = True
        self._close_at = self._server.clock() + self._server.limits.client_write_seconds
        self.transport.close()

    def close_if_idle(self) -> None:
        """Draining: nobody waits for an answer here."""
        if self._active is None and not self._is_lingering:
            self._close()
            if self.transport.get_extra_info("sslcontext") is not None:
                # TLS ends when both have said so, and many an idle client looks only before its next request.
                self._close_at = self._server.clock() + self._server.limits.linger_seconds

    def abort(self, reason: str) -> None:
        """At once, whatever is on its way."""
        self.cut_reason = reason
        self.transport.abort()
        self._leave()

    def shut_down(self) -> None:
        """The gateway ends: so does the answer that is on its way, as well as it can be told."""
        if self.relay is not None:
            self.relay.give_up(ShuttingDown())

    def check(self, now: float) -> None:
        """Called now and then: enforce whatever deadline is running."""
        if self.relay is not None:
            self.relay.check(now)
        elif now >= self._close_at:
            self._deadline_passed()

    def _is_mid_request(self) -> bool:
        """A part of a request has come, and the rest will be read."""
        return not self._input_over and (self._reader.incoming is not None or self._reader.is_in_head)

    def _extend_deadline(self) -> None:
        """A head has a time in all, counted from its first byte; a body may take long but not fall silent."""
        if self._reader.incoming is not None:
            self._close_at = self._server.clock() + self._server.limits.body_silence_seconds
        elif not self._is_receiving:
            self._is_receiving = True
            self._close_at = self._server.clock() + self._server.limits.head_seconds

    def _deadline_passed(self) -> None:
        if self.transport.is_closing() or self._is_lingering:
            self.transport.abort()
        elif self._is_mid_request():
            self.refused(RequestTimeout("The request did not arrive in time"))
        else:
            self._close()


class _TooFarAhead(ClientError):
    """Not answered: what was read before is, then the connection ends."""
