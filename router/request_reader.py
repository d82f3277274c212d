"""Requests out of a client's bytes: llhttp's framing, plus the limits and checks that it lacks. No sockets.

What becomes of a request, and when, is the business of its sink (`client_connection`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import httptools

from router.errors import (
    BadRequest,
    BodyTooLarge,
    HeadersTooLarge,
    NotSupported,
    RouterError,
    UriTooLong,
)
from router.limits import HEADER_LINE_BYTES, RelayLimits
from router.request import Request
from router.wire import http1, websocket
from router.wire.http1 import RequestHead
from router.wire.known_head import KnownHead


class RequestSink(Protocol):
    """Who takes the requests. A RouterError that it raises refuses the request and ends the input."""

    def head_arrived(self, request: Request, num_bytes: int) -> None:
        """A head is whole and sound; its body may follow."""

    def body_arrived(self, num_bytes: int) -> None:
        """More of a body was collected."""

    def request_arrived(self, request: Request) -> None:
        """A request is whole."""

    def beyond_arrived(self, data: bytes) -> None:
        """Bytes behind a request for a tunnel, which is the last request."""

    def refused(self, error: RouterError) -> None:
        """No request can be read from here on."""


class RequestReader:
    """Feed it bytes; it calls the sink. httptools calls the `on_*` methods back while bytes are fed."""

    __slots__ = (
        "_clock", "_fed_bytes", "_head_bytes", "_headers", "_heads", "_is_over", "_is_upgrade", "_known",
        "_limits", "_missing_bytes", "_parser", "_sink", "_url", "incoming",
    )  # fmt: skip

    def __init__(self, sink: RequestSink, limits: RelayLimits, clock: Callable[[], float]) -> None:
        self._sink = sink
        self._limits = limits
        self._clock = clock
        self._parser = httptools.HttpRequestParser(self)
        self._is_upgrade = False
        self._is_over = False
        self._known: KnownHead[RequestHead] = KnownHead()
        self._heads: list[RequestHead] = []
        """Of the bytes that llhttp was fed last."""
        self._missing_bytes = 0
        """Of a body whose head llhttp has not seen, as it was known."""
        self.incoming: Request | None = None
        """The request whose body is being collected."""
        self._forget_head()

    def _forget_head(self) -> None:
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._fed_bytes = 0

    @property
    def is_in_head(self) -> bool:
        """A head has come in part."""
        return self.incoming is None and (self._url != b"" or self._head_bytes != 0)

    def feed(self, data: bytes) -> None:
        """Not to be called again after the sink was told of a refusal."""
        if self._is_over:
            self._sink.beyond_arrived(data)
            return
        if self._missing_bytes:
            self._continue_known(data)
            return
        was_in_head = self.is_in_head
        is_beginning = self.incoming is None and not was_in_head
        if is_beginning and (known := self._known.recall(data)) and self._begin_known(*known):
            return
        self._heads = []
        if not self._parse(data):
            return
        if is_beginning and self._heads and self._heads[0].may_repeat:
            self._known.remember(data, self._heads[0])
        if was_in_head and self.is_in_head:
            self._count_head(len(data))

    def _parse(self, data: bytes) -> bool:
        """False when llhttp reads no further with these bytes."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as stop:
            self._upgrade_offered(data[stop.args[0] :])
            return False
        except httptools.HttpParserError as error:
            self._sink.refused(_reason(error))
            return False
        return True

    def _begin_known(self, head: RequestHead, num_bytes: int, beginning: bytes) -> bool:
        """A request with the head of an earlier one, of which llhttp does not get to see anything; False when
        it is not that simple: other requests follow, or the body is too large."""
        length = head.content_length
        assert length is not None
        if len(beginning) > length or length > self._limits.body_bytes:
            return False
        request = self.incoming = Request(head, self._clock())
        try:
            self._sink.head_arrived(request, num_bytes)
            self._missing_bytes = length
            self._collect_known(beginning)
        except RouterError as error:
            self._sink.refused(error)
        return True

    def _continue_known(self, data: bytes) -> None:
        body, rest = data[: self._missing_bytes], data[self._missing_bytes :]
        try:
            self._collect_known(body)
        except RouterError as error:
            self._sink.refused(error)
            return
        if rest:
            self.feed(rest)

    def _collect_known(self, piece: bytes) -> None:
        self._missing_bytes -= len(piece)
        if piece:
            self.on_body(piece)
        if not self._missing_bytes:
            self.on_message_complete()

    def _count_head(self, num_bytes: int) -> None:
        """A head that comes in pieces: what llhttp keeps to itself counts too."""
        self._fed_bytes += num_bytes
        if self._fed_bytes > self._limits.head_bytes:
            self._sink.refused(self._headers_too_large())

    def _headers_too_large(self) -> HeadersTooLarge:
        return HeadersTooLarge(f"The headers are larger than {self._limits.head_bytes} bytes")

    def _upgrade_offered(self, rest: bytes) -> None:
        """llhttp stops at a head that offers another protocol. WebSockets are the sink's affair; any other
        offer is taken back and the request read again: Java's client offers h2c with its first request, body
        and all."""
        parser = self._parser
        method, version = parser.get_method(), parser.get_http_version()
        if method == b"CONNECT":
            self._sink.refused(NotSupported("CONNECT is not supported by this gateway"))
            return
        if websocket.is_named(self._headers):
            self._ask_for_tunnel(method, version, rest)
            return
        head = http1.without_upgrade(method, self._url, version, self._headers)
        self._parser = httptools.HttpRequestParser(self)
        self._is_upgrade = False
        self._forget_head()
        self.feed(head + rest)

    def _ask_for_tunnel(self, method: bytes, version: str, rest: bytes) -> None:
        headers = websocket.with_key_as_bearer(self._headers)
        try:
            head = http1.read_request_head(method, self._url, version, False, headers)
            head.is_websocket = True
            request = Request(head, self._clock())
            self._sink.head_arrived(request, len(self._url) + self._head_bytes)
            websocket.check(head, headers)
        except RouterError as error:
            self._sink.refused(error)
            return
        self._is_over = True
        self._forget_head()
        self._sink.request_arrived(request)
        if rest:
            self._sink.beyond_arrived(rest)

    # The parser's side

    def on_url(self, url: bytes) -> None:
        self._url += url
        if len(self._url) > self._limits.url_bytes:
            raise UriTooLong(f"The request target is longer than {self._limits.url_bytes} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value) + HEADER_LINE_BYTES
        if self._head_bytes > self._limits.head_bytes:
            raise self._headers_too_large()
        if self.incoming is None:  # else a trailer: bounded like headers, and not forwarded
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        parser = self._parser
        if parser.should_upgrade():
            self._is_upgrade = True
            return
        version, keep_alive = parser.get_http_version(), parser.should_keep_alive()
        head = http1.read_request_head(parser.get_method(), self._url, version, keep_alive, self._headers)
        request = self.incoming = Request(head, self._clock())
        if (head.content_length or 0) > self._limits.body_bytes:
            raise self._body_too_large()
        self._heads.append(head)
        self._sink.head_arrived(request, len(self._url) + self._head_bytes)

    def on_body(self, piece: bytes) -> None:
        request = self.incoming
        if request is None:
            return
        request.pieces.append(piece)
        request.num_bytes += len(piece)
        self._sink.body_arrived(len(piece))
        if request.num_bytes > self._limits.body_bytes:
            raise self._body_too_large()

    def _body_too_large(self) -> BodyTooLarge:
        return BodyTooLarge(f"The body is larger than {self._limits.body_bytes} bytes")

    def on_message_complete(self) -> None:
        request = self.incoming
        if self._is_upgrade or request is None:
            return
        self.incoming = None
        self._forget_head()
        request.body_complete()
        self._sink.request_arrived(request)


def _reason(error: httptools.HttpParserError) -> RouterError:
    """What a callback raised, or what llhttp did not like."""
    if isinstance(error.__context__, RouterError):
        return error.__context__
    return BadRequest(f"Malformed HTTP request: {error}")
