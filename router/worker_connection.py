"""One HTTP/1.1 connection to a worker: an exchange at a time, and its answer out of the bytes.

What it reads goes to an `AnswerSink` in the same callback: no queue, no task. What the sink does with it
(relaying, counting) lives in `relay`; which connection is used, and where new ones come from, in `upstream`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

import httptools

from router.errors import RouterError, WorkerProtocolError, WorkerUnavailable
from router.limits import JOINED_BYTES_MAX, RESPONSE_HEAD_BYTES_MAX, WRITE_BUFFER_HIGH, WRITE_BUFFER_LOW
from router.wire import http1, websocket
from router.wire.http1 import ResponseHead
from router.wire.known_head import KnownHead

_TAIL_BYTES = 6
"""Two blank lines' worth: as much as is looked at behind a chunk."""

_EVENT_END = b"\n\n\r\n"
"""Of a chunk that ends as an event does, its own line included."""
_NO_CHUNK = b"\n"
_SIZE_LINES = {
    len(chunk): chunk[: chunk.index(b"\n") + 1] for chunk in map(http1.chunk, map(bytes, range(1, 2048)))
}
"""By the length of a whole chunk: how it begins. One token's event has some 300 bytes."""


class AnswerSink(Protocol):
    """Who takes a worker's answer."""

    def head(self, head: ResponseHead) -> None:
        """The final head (none of the 1xx)."""

    def body(self, raw: bytes, pieces: list[bytes], ended: bool) -> None:
        """What one read brought behind the head: as it came, framing included, and as body pieces."""

    takes_events: bool
    """Whether `event` may be called."""

    def event(self, raw: bytes) -> None:
        """One read was one whole chunk of whole events, as nearly every read of a stream is."""

    def failed(self, error: RouterError) -> None:
        """The answer broke off; the connection is gone. Called at most once, and nothing after it."""


class WorkerConnection(asyncio.Protocol):
    """httptools calls the `on_*` methods back while bytes are fed to the parser."""

    __slots__ = (
        "_complete", "_give_back", "_head", "_headers", "_in_chunk", "_is_in_body", "_keep_alive",
        "_known", "_method", "_num_heads", "_on_event", "_parser", "_pieces", "_raw_head", "_raw_last",
        "_reason", "_sink", "_until_eof", "idle_since", "is_silent", "switched", "transport",
    )  # fmt: skip

    transport: asyncio.Transport

    def __init__(self, give_back: Callable[[WorkerConnection], None]) -> None:
        """`give_back` is called when an answer has ended and the connection may carry another."""
        self._give_back = give_back
        self._known: KnownHead[ResponseHead] = KnownHead()
        self._parser = httptools.HttpResponseParser(self)
        self._sink: AnswerSink | None = None
        self._method = b""
        self.is_silent = True
        """Not a byte of this exchange's answer has come."""
        self.idle_since = 0.0
        self._reset()

    def _reset(self) -> None:
        self._head: ResponseHead | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._reason = b""
        self._raw_head = b""
        self._raw_last = b""
        self._num_heads = 0
        self._is_in_body = False
        self._in_chunk = False
        self._on_event: Callable[[bytes], None] | None = None
        """The sink's `event`, while llhttp stands between two chunks and the sink takes events."""
        self._until_eof = False
        self._keep_alive = False
        self._complete = False
        self._pieces: list[bytes] = []
        self.switched: Callable[[ResponseHead, bytes], None] | None = None
        """Set when the request asks for a WebSocket: called with the head of the answer that agrees and what
        came behind it. The transport is the callee's from then on."""

    def send(self, sink: AnswerSink, method: bytes, head: bytes, body: bytes) -> None:
        """Begin an exchange. Whatever comes of it reaches `sink`."""
        self._sink = sink
        self._method = method
        self.is_silent = True
        if len(body) <= JOINED_BYTES_MAX:
            self.transport.write(head + body)
        else:
            self.transport.write(head)
            self.transport.write(body)

    @property
    def at_chunk_boundary(self) -> bool:
        """Whether the bytes handed on so far end with a whole chunk, of an answer that is chunked.

        A next chunk's header may have come in part; it cannot follow directly on a blank line's end.
        """
        return not self._in_chunk and self._raw_last.endswith((_EVENT_END, b"\n\r\n\r\n", b"\r\r\r\n"))

    # The transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are of no asyncio class
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH, low=WRITE_BUFFER_LOW)

    def data_received(self, data: bytes) -> None:
        on_event = self._on_event
        if (
            on_event is not None
            and data.endswith(_EVENT_END)
            and data.startswith(_SIZE_LINES.get(len(data), _NO_CHUNK))
        ):
            # Exactly one chunk, its size spelled as servers do it, that ends as an event does. llhttp would
            # be where it is now, so it need not see it.
            self._raw_last = data
            on_event(data)
            return
        sink = self._sink
        if sink is None:
            self.transport.abort()  # bytes that nobody asked for
            return
        is_first = self.is_silent
        if is_first:
            self.is_silent = False
            if (known := self._known.recall(data)) and self._take_known(sink, *known):
                return
        if not self._parse(data):
            return
        body = data if self._is_in_body else self._read_head(sink, data)
        if body is None:
            return
        pieces = self._pieces
        if pieces:
            self._pieces = []
        if not self._complete:
            self._raw_last = body if len(body) >= _TAIL_BYTES else (self._raw_last + body)[-_TAIL_BYTES:]
            sink.body(body, pieces, False)
            if self._sink is sink and sink.takes_events:
                self._on_event = sink.event if self.at_chunk_boundary else None
        elif self._ends_cleanly(body, pieces):
            if is_first and self._head is not None and self._may_repeat(self._head):
                self._known.remember(data, self._head)
            self._finish(sink, body, pieces)
        else:
            self.fail(WorkerProtocolError("The worker sent bytes beyond the end of its answer"))

    def _parse(self, data: bytes) -> bool:
        """False when the exchange has ended with these bytes, one way or another."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as stop:
            self._switch(data[stop.args[0] :])
            return False
        except httptools.HttpParserError as error:
            self.fail(_reason(error))
            return False
        return True

    def _read_head(self, sink: AnswerSink, data: bytes) -> bytes | None:
        """The bytes behind the head; None while it is not whole, or when it is none."""
        self._raw_head += data
        if self._head is None:
            if len(self._raw_head) > RESPONSE_HEAD_BYTES_MAX:
                self.fail(WorkerProtocolError("The head of the worker's answer is too large"))
            return None
        body = self._behind_head()
        if body is None:
            self.fail(WorkerProtocolError("The worker's answer is malformed"))
            return None
        self._is_in_body = True
        sink.head(self._head)
        return body

    def _may_repeat(self, head: ResponseHead) -> bool:
        """Whether a later answer with this head is read by its head and its length alone."""
        is_sized = bool(head.content_length) and head.has_body(self._method)
        return is_sized and self._num_heads == 1 and self._keep_alive

    def _take_known(self, sink: AnswerSink, head: ResponseHead, _: int, body: bytes) -> bool:
        """A whole answer with the head of an earlier one, which llhttp does not get to see; False when it is
        not that simple."""
        if len(body) != head.content_length or not head.has_body(self._method) or self.switched is not None:
            return False
        self._keep_alive = True
        sink.head(head)
        self._finish(sink, body, [body])
        return True

    def eof_received(self) -> None:
        if self._sink is None:
            return
        if self._until_eof:
            self._keep_alive = False
            self._finish(self._sink, b"", [])
        else:
            self.fail(WorkerUnavailable("The worker closed the connection before its answer was complete"))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._sink is not None:
            self.fail(WorkerUnavailable("The connection to the worker was lost"))
        del self._parser  # the two hold each other, and garbage in circles costs the collector 7 µs apiece

    def fail(self, error: RouterError) -> None:
        """Give the exchange up, and the connection with it."""
        sink, self._sink, self._on_event = self._sink, None, None
        self.transport.abort()
        if sink is not None:
            sink.failed(error)

    def abort(self) -> None:
        """Nobody wants the answer any more: a worker that sees its connection go stops generating."""
        self._sink = self._on_event = None
        self.transport.abort()

    def _finish(self, sink: AnswerSink, data: bytes, pieces: list[bytes]) -> None:
        # After an answer that came before the request was sent whole: `close` would still send the rest.
        reusable = self._keep_alive and self.transport.get_write_buffer_size() == 0
        self._sink = None
        self._reset()
        if self._method == b"HEAD":
            data, pieces = b"", []  # a body behind that head would be read as the next answer's beginning
        self._give_back(self) if reusable else self.transport.abort()
        sink.body(data, pieces, True)

    def _switch(self, rest: bytes) -> None:
        """The exchange ends here, and HTTP with it."""
        head, switched = self._head, self.switched
        assert head is not None
        assert switched is not None
        self._sink = self.switched = None
        switched(head, rest)

    def _behind_head(self) -> bytes | None:
        """What follows the final head in the bytes so far; None if llhttp saw heads where there are none."""
        end = 0
        for _ in range(self._num_heads):
            if not self._raw_head.startswith(b"HTTP/1.", end):
                return None
            end = self._raw_head.find(b"\r\n\r\n", end) + 4
            if end < 4:
                return None
        rest, self._raw_head = self._raw_head[end:], b""
        return rest

    def _ends_cleanly(self, data: bytes, pieces: list[bytes]) -> bool:
        head = self._head
        if head is None or not head.has_body(self._method):
            return not data or self._method == b"HEAD"  # that connection is not used again
        if not head.is_chunked:
            return sum(map(len, pieces)) == len(data)
        # llhttp skips blank lines behind a message; relayed, they would be part of no answer.
        end = (self._raw_last[-_TAIL_BYTES:] + data)[-_TAIL_BYTES:]
        return end.endswith(b"\r\n\r\n") and end != b"\r\n\r\n\r\n"

    # The parser's side

    def on_message_begin(self) -> None:
        if self._complete:
            raise WorkerProtocolError("The worker sent bytes beyond the end of its answer")

    def on_status(self, reason: bytes) -> None:
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head is None:  # else a trailer
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        parser = self._parser
        self._num_heads += 1
        status = parser.get_status_code()
        if status == 101 and not self._may_switch():
            raise WorkerProtocolError("The worker switched protocols unasked")
        if status == 101 or status >= 200:
            head = http1.read_response_head(status, self._reason, parser.get_http_version(), self._headers)
            self._head = head
            self._keep_alive = parser.should_keep_alive()
            self._until_eof = head.ends_with_connection(self._method)
            if self._method == b"HEAD":
                # llhttp now waits for the body that the head announces: of no more use.
                self._complete = True
                self._keep_alive = False
        self._headers = []
        self._reason = b""

    def _may_switch(self) -> bool:
        is_sound = self._parser.should_upgrade() and websocket.is_named(self._headers)
        return is_sound and self.switched is not None

    def on_body(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._in_chunk = True

    def on_chunk_complete(self) -> None:
        self._in_chunk = False

    def on_message_complete(self) -> None:
        if self._head is not None:  # else one of the 1xx
            self._complete = True
            self._keep_alive &= self._parser.should_keep_alive()  # asked again: a trailer may end it too


def _reason(error: Exception) -> RouterError:
    """What a callback raised, or what llhttp did not like."""
    if isinstance(error.__context__, RouterError):
        return error.__context__
    return WorkerProtocolError(f"The worker's answer is malformed: {error}")
