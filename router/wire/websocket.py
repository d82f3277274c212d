"""Opening handshakes of WebSockets (RFC 6455) as a gateway sees them; frames are read nowhere.

What the two sides agree on (versions, subprotocols, extensions) is their own affair and passes unchanged.
"""

from __future__ import annotations

from router.errors import BadRequest
from router.wire.http1 import RawHeaders, RequestHead

SWITCH_LINES = b"connection: upgrade\r\nupgrade: websocket\r\n"
"""What request and answer say of one connection; stripped from what is forwarded, as all of that kind is."""

_KEY_PROTOCOL = b"openai-insecure-api-key."


def is_named(headers: RawHeaders) -> bool:
    """Whether the Upgrade header names this protocol."""
    return any(
        name.lower() == b"upgrade" and value.strip().lower() == b"websocket" for name, value in headers
    )


def check(head: RequestHead, headers: RawHeaders) -> None:
    """Raises BadRequest unless a GET with this head opens a WebSocket (section 4.1)."""
    if head.is_http10:
        raise BadRequest("A WebSocket is opened over HTTP/1.1")
    if head.is_chunked or head.content_length:
        raise BadRequest("The request that opens a WebSocket has no body")
    names = [name.lower() for name, value in headers if value]
    for name in ("sec-websocket-key", "sec-websocket-version"):
        if names.count(name.encode()) != 1:
            raise BadRequest(f"Exactly one header {name} is required", param=name)


def with_key_as_bearer(headers: RawHeaders) -> RawHeaders:
    """Browsers cannot set headers here, so OpenAI's clients show their key as one of the subprotocols. Moved
    to where every other request has it, it is checked and forwarded as any key is, and not echoed."""
    moved: list[tuple[bytes, bytes]] = []
    key = b""
    for name, value in headers:
        if name.lower() == b"sec-websocket-protocol" and _KEY_PROTOCOL in value:
            tokens = [token.strip() for token in value.split(b",")]
            key = next((t.removeprefix(_KEY_PROTOCOL) for t in tokens if t.startswith(_KEY_PROTOCOL)), key)
            value = b", ".join(token for token in tokens if not token.startswith(_KEY_PROTOCOL))
            if not value:
                continue
        moved.append((name, value))
    if key and all(name.lower() != b"authorization" for name, _ in headers):
        moved.append((b"authorization", b"Bearer " + key))
    return moved
