"""One attempt's answer on its way from a worker's connection to a client's.

Bytes go from callback to callback: what one read of the worker brought is one write to the client, with its
framing as it came wherever the client speaks HTTP/1.1. Here the answer's head is held until its first body
byte, deadlines are enforced, slowness is passed back, and what metrics and routing want is seen in passing.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol

from router.client_connection import ClientConnection
from router.errors import HandOverRefused, RouterError, WorkerTimeout
from router.limits import USAGE_BODY_BYTES_MAX, RelayLimits
from router.wire import http1
from router.wire.endpoints import Protocol as WireProtocol
from router.wire.http1 import RequestHead, ResponseHead
from router.wire.sse import SseScanner, error_event
from router.worker_connection import WorkerConnection

_ERROR_EVENT = b'data: {"error"'
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Framing(Enum):
    """How the body reaches the client."""

    AS_IT_CAME = auto()
    """The worker's own chunks."""
    PIECES = auto()
    """Body bytes alone: the length is known, or the end of the connection ends them (HTTP/1.0)."""
    OUR_CHUNKS = auto()
    """The worker ends its body by closing, the client's connection goes on."""


class Observer(Protocol):
    """Who wants to know how the answer proceeds. Times are monotonic seconds."""

    def began(self, beginning: bytes, now: float) -> None:
        """The first body bytes (or the end of an answer without any) are about to be relayed."""

    def first_token(self, now: float) -> None: ...

    def output_tokens(self, num: int, now: float) -> None:
        """So many more events came in a stream that has begun: about a token each. Told now and then, and at
        its end."""

    def token_gaps(self) -> Callable[[float], None]:
        """Asked for once in a stream: what to call with the time since its last data events."""


class Relay:
    """An AnswerSink that writes to a client. `ended()` returns or raises the worker's error."""

    __slots__ = (
        "_client", "_clock", "_connection", "_delta_events", "_done", "_early_headers", "_extra_lines",
        "_feed_chunk", "_framing", "_held", "_is_verbatim", "_kept_bytes", "_last_at", "_limits",
        "_num_events_told", "_observer", "_paused_at", "_refuses_errors", "_request", "_request_deadline",
        "_scanner", "_token_gap", "_wants_body", "_worker", "_write", "begun", "body_pieces", "committed",
        "response", "takes_events",
    )  # fmt: skip

    def __init__(
        self,
        client: ClientConnection,
        request: RequestHead,
        observer: Observer,
        *,
        extra_lines: bytes,
        delta_events: bool,
        wants_body: bool,
        refuses_errors: bool = False,
        early_headers: bool,
        limits: RelayLimits,
        deadline: float,
        clock: Callable[[], float],
    ) -> None:
        """`extra_lines`: header lines added to the answer. `wants_body`: keep a JSON answer for its usage.
        `refuses_errors`: an answer of the server's own failure is not relayed but raised as HandOverRefused.
        `deadline`: when the request as a whole has taken too long."""
        self._client = client
        self._request = request
        self._observer = observer
        self._token_gap: Callable[[float], None]
        self._feed_chunk: Callable[[bytes], int]
        self._extra_lines = extra_lines
        self._delta_events = delta_events
        self._scanner: SseScanner | None = None
        self._wants_body = wants_body
        self._refuses_errors = refuses_errors
        self._early_headers = early_headers
        self._limits = limits
        self._request_deadline = deadline
        self._clock = clock
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._connection: WorkerConnection | None = None
        self._worker: WorkerConnection | None = None
        self._write = client.transport.write
        self._framing = Framing.PIECES
        self._is_verbatim = False
        self._held = b""
        self._last_at = 0.0
        self._paused_at: float | None = None
        self._kept_bytes = 0
        self._num_events_told = 0
        self.body_pieces: list[bytes] = []
        """The body of a JSON answer, up to USAGE_BODY_BYTES_MAX; cleared when it is larger."""
        self.takes_events = False
        self.response: ResponseHead | None = None
        self.committed = False
        """The head went to the client: no other worker can answer any more."""
        self.begun = False
        """The first body byte did."""

    async def ended(self) -> None:
        """Wait for the end of the answer. Raises the RouterError that broke it off."""
        await self._done

    def start(self, connection: WorkerConnection, head: bytes, body: bytes) -> None:
        """Send the request; the answer follows by itself."""
        self._connection = self._worker = connection
        self._last_at = self._clock()
        self._client.relay = self
        connection.send(self, self._request.method, head, body)
        if self._client.is_paused:
            self.pause()

    def abort(self) -> None:
        """Stop the worker's work on an answer that is not complete; harmless when it is."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()
        if self._done.done() and not self._done.cancelled():
            self._done.exception()  # seen, even if the client left before it could be waited for

    @property
    def usage_json(self) -> bytes:
        """The JSON text that holds the usage, or nothing."""
        if self._scanner is not None and self._scanner.usage_line:
            return self._scanner.usage_line
        return b"".join(self.body_pieces)

    # The worker's side

    def head(self, head: ResponseHead) -> None:
        if self._refuses_errors and head.status >= 500:
            self._refuse(f"The decode worker answered {head.status}")
            return
        self.response = head
        if head.is_event_stream and not head.is_encoded:
            self._scanner = SseScanner(delta_events=self._delta_events)
        self._wants_body = self._wants_body and head.is_json and not head.is_encoded
        if self._early_headers and head.is_event_stream and 200 <= head.status < 300:
            self._send(self._commit(head))

    def body(self, raw: bytes, pieces: list[bytes], ended: bool) -> None:
        now = self._clock()
        if ended:
            self._connection = None
        if self._done.done():
            return  # refused by its head; nobody waits for the rest
        if self._is_verbatim:  # nearly every chunk: the shortest way out
            self._send(raw)
        elif self.begun:
            self._send(self._framed(raw, pieces, ended))
        elif pieces and self._refuses_errors and self._is_refusal(pieces[0]):
            self._refuse("The decode worker's stream began with an error")
        elif pieces or ended:
            head = self._begin(pieces[0] if pieces else b"", now)
            self._send(head + self._framed(self._held + raw, pieces, ended))
            self._held = b""
        else:
            self._held += raw  # the size of a chunk that is still to come
        if pieces:
            self._observe(pieces[0] if len(pieces) == 1 else b"".join(pieces), now)
        if ended and not self._done.done():
            self._done.set_result(None)

    def _is_refusal(self, beginning: bytes) -> bool:
        """vLLM's streams say 200 at once, and KV that could not be had is their first event. It is one
        write of the server; in parts it is relayed as it comes."""
        return self._scanner is not None and not self.committed and beginning.startswith(_ERROR_EVENT)

    def _refuse(self, message: str) -> None:
        if not self._done.done():
            self._done.set_exception(HandOverRefused(message))

    def event(self, raw: bytes) -> None:
        """What `body` does, as short as can be: this runs for every token of the fleet.

        Callables are taken out of their slots first: CPython 3.11 is slow to call `self.slot()`.
        """
        write, clock, token_gap, feed_chunk = self._write, self._clock, self._token_gap, self._feed_chunk
        try:
            write(raw)
        except RuntimeError:  # as in `_send`
            if not self._client.transport.is_closing():
                raise
        if feed_chunk(raw):
            now = clock()
            token_gap(now - self._last_at)
            self._last_at = now

    def _send(self, data: bytes) -> None:
        """uvloop takes nothing more for a client that has reset its connection, a turn before it tells that
        the connection is lost."""
        try:
            self._write(data)
        except RuntimeError:
            if not self._client.transport.is_closing():
                raise

    def failed(self, error: RouterError) -> None:
        self._connection = None
        if self._done.done():
            return
        if self._is_whole():
            if self._framing is not Framing.PIECES:
                self._send(http1.LAST_CHUNK)
            self._done.set_result(None)
        else:
            self._done.set_exception(error)

    def _is_whole(self) -> bool:
        """The worker broke off behind `[DONE]`: the client has it all, and no error may follow that."""
        scanner = self._scanner
        if scanner is None or not self.begun or not scanner.said_done:
            return False
        if self._framing is Framing.PIECES:
            return self.response is not None and self.response.content_length is None
        return self._can_place_event(scanner)

    def _begin(self, beginning: bytes, now: float) -> bytes:
        """Returns the head, unless it went out early."""
        assert self.response is not None
        self.begun = True
        self._observer.began(beginning, now)
        if self._scanner is None:
            self._observer.first_token(now)
        head = b"" if self.committed else self._commit(self.response)
        self._is_verbatim = self._framing is Framing.AS_IT_CAME
        return head

    def _commit(self, head: ResponseHead) -> bytes:
        """The head for the client; from here on no other worker can answer."""
        self.committed = self._client.answer_begun = True
        lines = [http1.status_line(head.status, head.reason), head.forward, self._extra_lines]
        if head.content_length is not None:
            lines.append(b"content-length: %d\r\n" % head.content_length)
        closes = self._client.ends_after_answer()
        if head.is_chunked or head.ends_with_connection(self._request.method):
            if self._request.is_http10:
                closes = True
            else:
                lines.append(b"transfer-encoding: chunked\r\n")
                self._framing = Framing.AS_IT_CAME if head.is_chunked else Framing.OUR_CHUNKS
        if closes:
            lines.append(b"connection: close\r\n")
            self._client.close_after = True
        elif self._request.is_http10:
            lines.append(b"connection: keep-alive\r\n")
        lines.append(b"\r\n")
        return b"".join(lines)

    def _framed(self, raw: bytes, pieces: list[bytes], ended: bool) -> bytes:
        """What one read brought, as one write for the client: each write is a system call."""
        if self._framing is Framing.AS_IT_CAME:
            return raw
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if self._framing is Framing.PIECES:
            return body
        return (http1.chunk(body) if body else b"") + (http1.LAST_CHUNK if ended else b"")

    def _observe(self, body: bytes, now: float) -> None:
        scanner = self._scanner
        if scanner is None:
            self._last_at = now
            if self._wants_body:
                self._keep_body(body)
            return
        had_first_token = scanner.first_token_seen
        if not scanner.feed(body):
            return  # comments keep a connection alive and are no progress
        if had_first_token:
            self._token_gap(now - self._last_at)
        elif scanner.first_token_seen:
            self._observer.first_token(now)
            self._token_gap = self._observer.token_gaps()
            self._feed_chunk = scanner.feed_chunk
            self.takes_events = self._is_verbatim
        self._last_at = now

    def _keep_body(self, body: bytes) -> None:
        self.body_pieces.append(body)
        self._kept_bytes += len(body)
        if self._kept_bytes > USAGE_BODY_BYTES_MAX:
            self.body_pieces = []
            self._wants_body = False

    # The client's side

    def pause(self) -> None:
        """The client is slow: stop reading from the worker."""
        if self._connection is not None and self._paused_at is None:
            self._paused_at = self._clock()
            self._connection.transport.pause_reading()

    def resume(self) -> None:
        if self._paused_at is None:
            return
        self._paused_at = None
        self._last_at = self._clock()  # the worker was not the silent one
        if self._connection is not None and not self._connection.transport.is_closing():
            self._connection.transport.resume_reading()

    def cut_short(self, error: RouterError, protocol: WireProtocol) -> bool:
        """The worker failed in mid-answer: end a stream with an error event if one can be placed (True), else
        cut the connection, so that the client cannot take the part for the whole."""
        scanner = self._scanner
        if scanner is not None and self._can_place_event(scanner):
            event = error_event(protocol, error, scanner.num_events)
            self._send(http1.chunk(event) + http1.LAST_CHUNK)
            return True
        if (
            self._framing is Framing.PIECES
            and self.response is not None
            and self.response.content_length is None
        ):
            _reset(self._client.transport)
        else:
            self._client.transport.close()
        return False

    def _can_place_event(self, scanner: SseScanner) -> bool:
        if self._framing is Framing.PIECES or not scanner.at_event_boundary:
            return False
        if self._framing is Framing.OUR_CHUNKS or not self.begun:
            return True
        return self._worker is not None and self._worker.at_chunk_boundary

    # What time brings

    def check(self, now: float) -> None:
        """Tell how far a stream has come, and enforce the deadline that is running; called now and then."""
        self.tell_progress(now)
        limits = self._limits
        if self._paused_at is not None:
            if now - self._paused_at > limits.client_write_seconds:
                self._client.abort("slow")
        elif self._connection is None:
            return
        elif now > self._request_deadline:
            self._time_out(f"The request took longer than {limits.request_seconds:g} s", "request_timeout")
        elif not self.begun and now - self._last_at > limits.first_byte_seconds:
            self._time_out(
                f"The worker sent no byte of its answer within {limits.first_byte_seconds:g} s",
                "first_byte_timeout",
            )
        elif self.begun and now - self._last_at > limits.idle_seconds:
            self._time_out(f"The worker fell silent for {limits.idle_seconds:g} s", "idle_timeout")

    def tell_progress(self, now: float) -> None:
        """How many events came since this was told last: now and then and at the end, since a call for each
        is too much."""
        scanner = self._scanner
        if scanner is not None and scanner.first_token_seen and scanner.num_events > self._num_events_told:
            self._observer.output_tokens(scanner.num_events - self._num_events_told, now)
            self._num_events_told = scanner.num_events

    def _time_out(self, message: str, code: str) -> None:
        self.give_up(WorkerTimeout(message, code=code))

    def give_up(self, error: RouterError) -> None:
        """End an answer that is not complete with this error, and the worker's work on it."""
        if self._connection is not None:
            self._connection.fail(error)


def _reset(transport: asyncio.Transport) -> None:
    """Where the end of the connection ends the body, only a reset tells a broken answer from a whole one."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    transport.abort()
