"""Opening handshakes: judged, and the key in a subprotocol moved."""

from __future__ import annotations

import pytest

from router.errors import BadRequest
from router.wire import websocket
from router.wire.http1 import read_request_head

KEY = (b"Sec-WebSocket-Key", b"dGhlIHNhbXBsZSBub25jZQ==")
VERSION = (b"Sec-WebSocket-Version", b"13")
HANDSHAKE = [(b"Host", b"h"), (b"Upgrade", b"WebSocket"), (b"Connection", b"Upgrade"), KEY, VERSION]


def check(headers: list[tuple[bytes, bytes]], *, version: str = "1.1") -> None:
    head = read_request_head(b"GET", b"/v1/realtime", version, False, headers)
    websocket.check(head, headers)


def test_handshake_in_order() -> None:
    check(HANDSHAKE)
    check([*HANDSHAKE, (b"Content-Length", b"0")])
    assert websocket.is_named(HANDSHAKE)
    assert not websocket.is_named([(b"Upgrade", b"h2c")])


@pytest.mark.parametrize(
    "headers",
    [
        [header for header in HANDSHAKE if header != KEY],
        [header for header in HANDSHAKE if header != VERSION],
        [*HANDSHAKE, KEY],
        [*HANDSHAKE, VERSION],
        [(name, b"" if (name, value) == KEY else value) for name, value in HANDSHAKE],
        [*HANDSHAKE, (b"Content-Length", b"1")],
        [*HANDSHAKE, (b"Transfer-Encoding", b"chunked")],
    ],
)
def test_what_opens_no_websocket(headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(BadRequest):
        check(headers)


def test_websocket_is_opened_over_http11() -> None:
    with pytest.raises(BadRequest):
        check(HANDSHAKE, version="1.0")


@pytest.mark.parametrize(
    ("protocols", "left"),
    [
        (
            b"realtime, openai-insecure-api-key.sk-1, openai-beta.realtime-v1",
            b"realtime, openai-beta.realtime-v1",
        ),
        (b"openai-insecure-api-key.sk-1", None),
    ],
)
def test_key_among_the_subprotocols_becomes_a_bearer_token(protocols: bytes, left: bytes | None) -> None:
    moved = websocket.with_key_as_bearer([*HANDSHAKE, (b"Sec-WebSocket-Protocol", protocols)])
    expected = [] if left is None else [(b"Sec-WebSocket-Protocol", left)]
    assert moved == [*HANDSHAKE, *expected, (b"authorization", b"Bearer sk-1")]


def test_key_in_the_header_counts_and_the_other_goes_nowhere() -> None:
    shown = [(b"Authorization", b"Bearer a"), (b"Sec-WebSocket-Protocol", b"openai-insecure-api-key.b")]
    assert websocket.with_key_as_bearer(shown) == shown[:1]


def test_other_subprotocols_stay_as_they_are() -> None:
    headers = [*HANDSHAKE, (b"Sec-WebSocket-Protocol", b"realtime ,x")]
    assert websocket.with_key_as_bearer(headers) == headers
