"""One client's connection: requests out of its bytes, answered in order, each by one coroutine.

It knows HTTP and its limits, and nothing of workers: a `Handler` answers. Body bytes of an answer are written
to `transport` by whoever relays them; pausing and leaving are passed on to that relay.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, cast

import httptools

from router.errors import (
    BadRequest,
    BodyTooLarge,
    HeadersTooLarge,
    InternalError,
    NotSupported,
    RequestTimeout,
    RouterError,
    UriTooLong,
)
from router.limits import WRITE_BUFFER_HIGH, WRITE_BUFFER_LOW
from router.request import Request
from router.wire import http1

if TYPE_CHECKING:
    from router.server import Server

_logger = logging.getLogger(__name__)

_NEVER = float("inf")


class Relay(Protocol):
    """What a connection tells the answer that is on its way."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def check(self, now: float) -> None: ...


class ClientConnection(asyncio.Protocol):
    """httptools calls the `on_*` methods back while bytes are fed to the parser."""

    __slots__ = (
        "_active", "_close_at", "_fed_bytes", "_head_bytes", "_headers", "_incoming", "_input_over",
        "_is_lingering", "_is_receiving", "_parser", "_queue", "_queued_bytes", "_server", "_task",
        "_upgrading", "_url", "answer_begun", "close_after", "cut_reason", "is_paused", "relay", "transport",
    )  # fmt: skip

    transport: asyncio.Transport

    def __init__(self, server: Server) -> None:
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._fed_bytes = 0
        self._is_receiving = True
        self._incoming: Request | None = None
        self._upgrading = False
        self._active: Request | None = None
        self._task: asyncio.Task[None] | None = None
        self._queue: deque[Request] = deque()
        self._queued_bytes = 0
        self._input_over = False
        self._is_lingering = False
        self._close_at = _NEVER
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
        elif self._queued_bytes > self._server.limits.pipelined_bytes:
            self._refuse(None)
            return
        was_in_head = self._is_in_head()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as stop:
            self._decline_upgrade(data[stop.args[0] :])
            return
        except httptools.HttpParserError as error:
            self._refuse(_reason(error))
            return
        if was_in_head and self._is_in_head():
            self._count_head(len(data))

    def eof_received(self) -> None:
        """A client that closes its side has left, as nginx sees it: without this a worker would generate for
        nobody until the first write fails."""
        if self._active is not None:
            self.transport.abort()
            self._leave()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.closed(self)
        self._leave()
        for request in (self._active, self._incoming, *self._queue):
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

    # The parser's side

    def on_url(self, url: bytes) -> None:
        self._url += url
        if len(self._url) > self._server.limits.url_bytes:
            raise UriTooLong(f"The request target is longer than {self._server.limits.url_bytes} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > self._server.limits.head_bytes:
            raise HeadersTooLarge(f"The headers are larger than {self._server.limits.head_bytes} bytes")
        if self._incoming is None:  # else a trailer: bounded like headers, and not forwarded
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        parser = self._parser
        if parser.should_upgrade():
            self._upgrading = True
            return
        limits = self._server.limits
        head = http1.read_request_head(
            parser.get_method(),
            self._url,
            parser.get_http_version(),
            parser.should_keep_alive(),
            self._headers,
        )
        request = Request(head, self._server.clock())
        if (head.content_length or 0) > limits.body_bytes:
            raise BodyTooLarge(f"The body is larger than {limits.body_bytes} bytes")
        try:
            self._server.handler.admit(request)
        except RouterError as error:
            if head.is_chunked or (head.content_length or 0) > limits.pipelined_bytes:
                raise
            request.error = error  # a small body is read, so that the connection can go on
        self._incoming = request
        if self._active is not None:
            self._queued_bytes += self._head_bytes
        if head.expects_continue and self._active is None:
            self.transport.write(http1.CONTINUE)

    def on_body(self, piece: bytes) -> None:
        request = self._incoming
        if request is None:
            return
        request.pieces.append(piece)
        request.num_bytes += len(piece)
        self._server.hold(len(piece))
        if request.num_bytes > self._server.limits.body_bytes:
            raise BodyTooLarge(f"The body is larger than {self._server.limits.body_bytes} bytes")
        if self._active is not None:
            self._queued_bytes += len(piece)

    def on_message_complete(self) -> None:
        request = self._incoming
        if self._upgrading or request is None:
            return
        self._incoming = None
        self._forget_head()
        request.body_complete()
        self._enqueue(request)

    def _forget_head(self) -> None:
        self._url = b""
        self._headers = []
        self._head_bytes = 0
        self._fed_bytes = 0

    def _is_in_head(self) -> bool:
        return self._incoming is None and (self._url != b"" or self._head_bytes != 0)

    def _count_head(self, num_bytes: int) -> None:
        """A head that comes in pieces: what llhttp keeps to itself counts too."""
        self._fed_bytes += num_bytes
        if self._fed_bytes > self._server.limits.head_bytes:
            self._refuse(
                HeadersTooLarge(f"The headers are larger than {self._server.limits.head_bytes} bytes")
            )

    def _decline_upgrade(self, rest: bytes) -> None:
        """llhttp stops at a head that offers another protocol. Tunnels are refused; any other offer is taken
        back and the request read again: Java's client offers h2c with its first request, body and all."""
        parser = self._parser
        method, version = parser.get_method(), parser.get_http_version()
        upgrade = next((value for name, value in self._headers if name.lower() == b"upgrade"), b"")
        if method == b"CONNECT" or upgrade.strip().lower() == b"websocket":
            self._refuse(NotSupported("Tunnels are not supported by this gateway"))
            return
        head = http1.without_upgrade(method, self._url, version, self._headers)
        self._parser = httptools.HttpRequestParser(self)
        self._upgrading = False
        self._forget_head()
        self.data_received(head + rest)

    # Requests in order

    def _enqueue(self, request: Request) -> None:
        if self._active is None:
            self._start(request)
        else:
            self._queue.append(request)

    def _start(self, request: Request) -> None:
        self._active = request
        self._close_at = _NEVER
        self.answer_begun = False
        if request.error is not None:
            self.respond_error(request.error, close=request.head is None)
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
        elif self._incoming is not None:
            self._extend_deadline()
            if self._incoming.head is not None and self._incoming.head.expects_continue:
                self.transport.write(http1.CONTINUE)
        elif self._is_in_head():
            self._extend_deadline()
        else:
            self._close_at = self._server.clock() + self._server.limits.keep_alive_seconds

    def _start_next(self) -> None:
        request = self._queue.popleft()
        if not self._queue:
            self._queued_bytes = 0
        self._start(request)

    def _refuse(self, error: RouterError | None) -> None:
        """No more requests can be read here. `error` is answered in its turn; None: just close."""
        self._input_over = True
        if self._incoming is not None:
            self._server.release(self._incoming)
            self._incoming = None
        if error is not None:
            self._enqueue(Request(None, self._server.clock(), error))
        elif self._active is None:
            self._close()

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
        return not keeps or self._server.is_draining or (self._input_over and not self._queue)

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

    def refuse_input(self) -> None:
        """Whatever comes is not read; an answer was written already."""
        self._input_over = True
        self._close()

    def close_if_idle(self) -> None:
        """Draining: nobody waits for an answer here."""
        if self._active is None and not self._is_lingering:
            self._close()

    def abort(self, reason: str) -> None:
        """At once, whatever is on its way."""
        self.cut_reason = reason
        self.transport.abort()
        self._leave()

    def check(self, now: float) -> None:
        """Called now and then: enforce whatever deadline is running."""
        if self.relay is not None:
            self.relay.check(now)
        elif now >= self._close_at:
            self._deadline_passed()

    def _extend_deadline(self) -> None:
        """A head has a time in all, counted from its first byte; a body may take long but not fall silent."""
        if self._incoming is not None:
            self._close_at = self._server.clock() + self._server.limits.body_silence_seconds
        elif not self._is_receiving:
            self._is_receiving = True
            self._close_at = self._server.clock() + self._server.limits.head_seconds

    def _deadline_passed(self) -> None:
        if self.transport.is_closing() or self._is_lingering:
            self.transport.abort()
        elif self._incoming is not None or self._url or self._head_bytes:
            self._refuse(RequestTimeout("The request did not arrive in time"))
        else:
            self._close()


def _reason(error: httptools.HttpParserError) -> RouterError:
    """What a callback raised, or what llhttp did not like."""
    if isinstance(error.__context__, RouterError):
        return error.__context__
    return BadRequest(f"Malformed HTTP request: {error}")
