"""HTTP/1.1 heads: what llhttp leaves unchecked, what a proxy must strip, and how heads are put together.

llhttp (through httptools) splits the bytes and refuses broken framing; this module judges the parsed headers
and builds new heads from them. Bodies pass through untouched elsewhere; no socket is known here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import parse_qsl

from router.errors import BadRequest, NotSupported, WorkerProtocolError

RawHeaders = Sequence[tuple[bytes, bytes]]

HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    )
)
"""Headers that concern one connection only (RFC 9110 section 7.6.1, RFC 7540 section 3.2.1)."""

_REQUEST_SPECIAL = HOP_BY_HOP | {
    b"host",
    b"content-length",
    b"expect",
    b"authorization",
    b"x-api-key",
    b"x-request-id",
    b"x-data-parallel-rank",
    b"x-kvgate-via",
}
_RESPONSE_SPECIAL = HOP_BY_HOP | {b"content-length", b"x-request-id", b"x-kvgate-worker"}
_NEVER_DROPPED = frozenset((b"close", b"content-type", b"content-encoding", b"content-length"))
"""`Connection` may not name what the body's end and meaning hang on."""

LAST_CHUNK = b"0\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass(slots=True)
class RequestHead:
    """A client's request line and headers, ready for forwarding.

    `forward` is the block of header lines that go to the worker as they are. Credentials, `x-request-id`,
    `x-data-parallel-rank`, `x-kvgate-via` and lengths are not in it: who forwards decides about them.
    """

    method: bytes
    target: bytes
    """Origin-form, query included."""
    is_http10: bool
    keep_alive: bool
    forward: bytes
    request_id: bytes = b""
    authorization: bytes = b""
    api_key: bytes = b""
    rank_lines: bytes = b""
    """The data-parallel rank that the client asks for, as header lines."""
    content_type: bytes = b""
    content_length: int | None = None
    is_chunked: bool = False
    is_encoded: bool = False
    """A Content-Encoding is in force: the body is opaque."""
    expects_continue: bool = False
    is_websocket: bool = False
    """It asks for a tunnel."""
    via: bytes = b""
    """The gateways that it has passed, as a list with commas."""

    @property
    def path(self) -> str:
        """Without the query; llhttp admits ASCII only."""
        return self.target.partition(b"?")[0].decode("latin-1")

    def in_query(self, name: str) -> str:
        """The last value of `name` in the query, as servers read it; empty when it is absent."""
        return dict(parse_qsl(self.target.partition(b"?")[2].decode("latin-1"))).get(name, "")

    @property
    def may_repeat(self) -> bool:
        """Whether a later request with this head is read by its head and its length alone."""
        has_more = self.is_chunked or self.expects_continue or self.is_websocket
        return self.content_length is not None and self.keep_alive and not has_more

    def with_length(self, content_length: int) -> RequestHead:
        """The same head before a body of another length. Not `dataclasses.replace`: that takes 2 us."""
        return RequestHead(
            self.method, self.target, self.is_http10, self.keep_alive, self.forward, self.request_id,
            self.authorization, self.api_key, self.rank_lines, self.content_type, content_length, False,
            self.is_encoded, via=self.via,
        )  # fmt: skip


@dataclass(slots=True)
class ResponseHead:
    """A worker's status line and headers, ready for forwarding; `forward` as in RequestHead."""

    status: int
    reason: bytes
    forward: bytes
    content_length: int | None = None
    is_chunked: bool = False
    is_encoded: bool = False
    """A Content-Encoding is in force: the body is opaque."""
    content_type: bytes = b""

    @property
    def is_event_stream(self) -> bool:
        return self.content_type.startswith(b"text/event-stream")

    @property
    def is_json(self) -> bool:
        return self.content_type.startswith(b"application/json")

    def with_length(self, content_length: int) -> ResponseHead:
        """The same head before a body of another length."""
        return ResponseHead(
            self.status, self.reason, self.forward, content_length, self.is_chunked, self.is_encoded,
            self.content_type,
        )  # fmt: skip

    def has_body(self, method: bytes) -> bool:
        """Whether body bytes follow an answer to `method`."""
        if method == b"HEAD" or self.status in (204, 304):
            return False
        return self.content_length != 0

    def ends_with_connection(self, method: bytes) -> bool:
        """Whether only the end of the connection ends the body."""
        return self.content_length is None and not self.is_chunked and self.has_body(method)


def read_request_head(
    method: bytes, target: bytes, version: str, keep_alive: bool, headers: RawHeaders
) -> RequestHead:
    """Judge and sort what llhttp accepted. Raises BadRequest for whatever is ambiguous, NotSupported for
    transfer codings other than chunked."""
    if version not in ("1.1", "1.0"):
        raise BadRequest(f"HTTP version {version} is not supported on this connection")
    head = RequestHead(method, _origin_form(target), version == "1.0", keep_alive, b"")
    lines: list[bytes] = []
    special: list[tuple[bytes, bytes]] = []
    for name, value in headers:
        key = name.lower()
        if key in _REQUEST_SPECIAL:
            special.append((key, value))
            continue
        if key == b"content-type":
            head.content_type = value
        elif key == b"content-encoding":
            head.is_encoded = _is_encoding(value)
        lines += (name, b": ", value, b"\r\n")
    num_hosts = 0
    for key, value in special:
        if key == b"host":
            num_hosts += 1
        else:
            _apply_request_special(head, key, value, lines)
    if num_hosts > 1 or (num_hosts == 0 and not head.is_http10):
        raise BadRequest("Exactly one Host header is required", param="host")
    head.forward = b"".join(lines)
    return head


def _apply_request_special(head: RequestHead, key: bytes, value: bytes, lines: list[bytes]) -> None:
    if key == b"content-length":
        head.content_length = int(value)
    elif key == b"x-request-id":
        head.request_id = value
    elif key == b"authorization":
        head.authorization = value
    elif key == b"x-api-key":
        head.api_key = value
    elif key == b"x-data-parallel-rank":
        head.rank_lines += b"x-data-parallel-rank: %b\r\n" % value
    elif key == b"x-kvgate-via":
        head.via = b"%b, %b" % (head.via, value) if head.via else value
    elif key == b"connection":
        _drop_named(value, lines)
    elif key == b"transfer-encoding":
        _check_transfer_encoding(head, value)
    elif key == b"expect":
        head.expects_continue = not head.is_http10 and value.lower() == b"100-continue"


def _check_transfer_encoding(head: RequestHead, value: bytes) -> None:
    if head.is_http10:
        raise BadRequest("Transfer-Encoding has no meaning in HTTP/1.0", param="transfer-encoding")
    if value.strip().lower() != b"chunked":
        raise NotSupported("Only the chunked transfer coding is supported", param="transfer-encoding")
    head.is_chunked = True


def _origin_form(target: bytes) -> bytes:
    """Clients may send the absolute form to any server (RFC 9112 section 3.2.2); workers get the path."""
    if target.startswith(b"/"):
        return target
    scheme, separator, rest = target.partition(b"://")
    if not separator or scheme.lower() not in (b"http", b"https"):
        raise BadRequest("The request target must be a path")
    slash = rest.find(b"/")
    return rest[slash:] if slash >= 0 else b"/"


def read_response_head(status: int, reason: bytes, version: str, headers: RawHeaders) -> ResponseHead:
    """Judge and sort what llhttp accepted. Raises WorkerProtocolError."""
    if version not in ("1.1", "1.0"):
        raise WorkerProtocolError(f"The worker answered with HTTP version {version}")
    head = ResponseHead(status, reason, b"")
    lines: list[bytes] = []
    named: list[bytes] = []
    for name, value in headers:
        key = name.lower()
        if key in _RESPONSE_SPECIAL:
            if key == b"content-length":
                head.content_length = int(value)
            elif key == b"transfer-encoding":
                _check_coding(head, value)
            elif key == b"connection":
                named.append(value)
            continue
        if key == b"content-type":
            head.content_type = value.lower()
        elif key == b"content-encoding":
            head.is_encoded = _is_encoding(value)
        lines += (name, b": ", value, b"\r\n")
    for value in named:
        _drop_named(value, lines)
    head.forward = b"".join(lines)
    return head


def _is_encoding(value: bytes) -> bool:
    return value.strip().lower() not in (b"", b"identity")


def _check_coding(head: ResponseHead, value: bytes) -> None:
    if head.is_chunked or value.strip().lower() != b"chunked":
        raise WorkerProtocolError("The worker answered with a transfer coding other than chunked, once")
    head.is_chunked = True


def _drop_named(connection: bytes, lines: list[bytes]) -> None:
    """Take out of `lines` (name, colon, value, end, ...) the headers that a Connection header names."""
    names = {token.strip().lower() for token in connection.split(b",")} - HOP_BY_HOP - _NEVER_DROPPED
    if not names:
        return
    for index in range(len(lines) - 4, -1, -4):
        if lines[index].lower() in names:
            del lines[index : index + 4]


def without_upgrade(method: bytes, target: bytes, version: str, headers: RawHeaders) -> bytes:
    """The head once more, as if the client had not offered another protocol; a server may ignore such an
    offer (RFC 9110 section 7.8)."""
    lines = [method, b" ", target, b" HTTP/", version.encode(), b"\r\n"]
    for name, value in headers:
        key = name.lower()
        if key == b"connection":
            value = _connection_without_upgrade(value)
            if not value:
                continue
        if key not in (b"upgrade", b"http2-settings"):
            lines += (name, b": ", value, b"\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)


def _connection_without_upgrade(value: bytes) -> bytes:
    tokens = (token.strip() for token in value.split(b","))
    return b", ".join(token for token in tokens if token.lower() not in (b"upgrade", b"http2-settings"))


def status_line(status: int, reason: bytes | None = None) -> bytes:
    """With the end of the line; the usual phrase when `reason` is None."""
    if reason is None:
        reason = HTTPStatus(status).phrase.encode()
    return b"HTTP/1.1 %d %b\r\n" % (status, reason)


def answer(
    status: int,
    body: bytes,
    *,
    content_type: str = "application/json",
    headers: Iterable[tuple[str, str]] = (),
    close: bool = False,
    without_body: bool = False,
) -> bytes:
    """A whole answer of the gateway's own. `without_body`: the answer to HEAD."""
    lines = [
        status_line(status),
        b"content-type: %b\r\ncontent-length: %d\r\n" % (content_type.encode(), len(body)),
    ]
    lines += [f"{name}: {value}\r\n".encode("latin-1", "replace") for name, value in headers]
    if close:
        lines.append(b"connection: close\r\n")
    lines.append(b"\r\n")
    if not without_body:
        lines.append(body)
    return b"".join(lines)


def chunk(data: bytes) -> bytes:
    """`data` (not empty) as one chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)
