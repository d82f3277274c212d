"""Requests out of arbitrary bytes in arbitrary pieces: the same whatever the cuts, and never an exception."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from router.errors import RouterError
from router.limits import RelayLimits
from router.request import Request
from router.request_reader import RequestReader

LIMITS = RelayLimits(head_bytes=2000, url_bytes=500, body_bytes=1000)


class Sink:
    """Keeps what arrives."""

    def __init__(self) -> None:
        self.requests: list[tuple[bytes, bytes, bytes]] = []
        self.error: RouterError | None = None
        self.beyond = b""

    def head_arrived(self, request: Request, num_bytes: int) -> None:
        pass

    def body_arrived(self, num_bytes: int) -> None:
        pass

    def request_arrived(self, request: Request) -> None:
        assert request.head is not None
        self.requests.append((request.head.method + request.head.target, request.head.forward, request.body))

    def beyond_arrived(self, data: bytes) -> None:
        self.beyond += data

    def refused(self, error: RouterError) -> None:
        assert self.error is None
        self.error = error


def read(pieces: list[bytes]) -> Sink:
    sink = Sink()
    reader = RequestReader(sink, LIMITS, lambda: 0.0)
    for piece in pieces:
        if sink.error is None and piece:
            reader.feed(piece)
    return sink


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    ends = sorted({at % (len(data) + 1) for at in cuts} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(ends)]


HEADERS = st.lists(
    st.sampled_from(
        [
            b"X-A: b\r\n",
            b"Accept: */*\r\n",
            b"Connection: keep-alive, x-a\r\n",
            b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n",
            b"Expect: 100-continue\r\n",
        ]
    ),
    max_size=3,
    unique=True,
)


@st.composite
def requests(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A sound request, and its body."""
    body = draw(st.binary(max_size=60))
    head = b"POST /v1/completions?q HTTP/1.1\r\nHost: h\r\n" + b"".join(draw(HEADERS))
    if draw(st.booleans()):
        return head + b"Content-Length: %d\r\n\r\n" % len(body) + body, body
    chunks = [body[at : at + 7] for at in range(0, len(body), 7)]
    framed = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in chunks)
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\n\r\n", body


CUTS = st.lists(st.integers(min_value=0), max_size=12)


@given(st.lists(requests(), min_size=1, max_size=4), CUTS)
def test_sound_requests_in_any_pieces(pairs: list[tuple[bytes, bytes]], cuts: list[int]) -> None:
    data = b"".join(request for request, _ in pairs)
    sink = read(cut(data, cuts))
    assert sink.error is None
    assert [body for _, _, body in sink.requests] == [body for _, body in pairs]
    assert sink.requests == read([data]).requests


TUNNEL = (
    b"GET /v1/realtime HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: k\r\n\r\n"
)


@given(st.lists(requests(), max_size=2), st.binary(max_size=60), CUTS)
def test_request_for_a_tunnel_is_the_last_and_what_follows_is_handed_on(
    pairs: list[tuple[bytes, bytes]], beyond: bytes, cuts: list[int]
) -> None:
    data = b"".join(request for request, _ in pairs) + TUNNEL + beyond
    sink = read(cut(data, cuts))
    assert sink.error is None
    assert [start for start, _, _ in sink.requests[len(pairs) :]] == [b"GET/v1/realtime"]
    assert sink.beyond == beyond


NOISE = st.one_of(
    st.binary(max_size=200),
    st.lists(
        st.sampled_from(
            [b"\r\n", b"\n", b":", b" ", b"0", b"5\r\nhello\r\n", b"Host: h\r\n", b"GET / HTTP/1.1\r\n"]
        ),
        max_size=30,
    ).map(b"".join),
)


@given(st.lists(requests(), max_size=2), NOISE, CUTS)
def test_anything_else_is_refused_or_waited_for(
    pairs: list[tuple[bytes, bytes]], noise: bytes, cuts: list[int]
) -> None:
    """What came before the noise is read all the same; how the noise is taken does not hang on the cuts."""
    data = b"".join(request for request, _ in pairs) + noise
    whole, parts = read([data]), read(cut(data, cuts))
    assert whole.requests[: len(pairs)] == parts.requests[: len(pairs)]
    assert len(parts.requests) >= len(pairs)
    assert whole.requests == parts.requests
    assert (whole.error is None) == (parts.error is None)
