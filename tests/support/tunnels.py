"""WebSocket handshakes as bytes, and a worker that agrees to them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.support.raw_worker import Script, WorkerSide
from tests.support.relay import get

SWITCH = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
)
HANDSHAKE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
}


def opening(path: str = "/v1/realtime?model=m", *, without: str = "", **extra: str) -> bytes:
    """A client's handshake. `extra`: more headers, `_` for a dash."""
    headers = {**HANDSHAKE, **{name.replace("_", "-"): value for name, value in extra.items()}}
    lines = (f"{name}: {value}\r\n" for name, value in headers.items() if name != without)
    return get(path, extra="".join(lines))


def agreeing(then: Callable[[WorkerSide], Awaitable[None]]) -> Script:
    """Every handshake is agreed to; the rest of the connection is the caller's."""

    async def script(side: WorkerSide) -> None:
        await side.send(SWITCH)
        await then(side)

    return script


async def echoes(side: WorkerSide) -> None:
    """Sends everything back until the client ends, then ends too."""
    while data := await side.reader.read(65536):
        await side.send(data)
    side.close()


async def waits(side: WorkerSide) -> None:
    """Takes whatever comes, and says nothing."""
    await side.peer_left()
