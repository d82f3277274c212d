"""A worker that is scripted byte by byte and records what it was sent; it knows no more HTTP than framing."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from router.worker_address import WorkerAddress

Script = Callable[["WorkerSide"], Awaitable[None]]
"""Called for each request that arrives; returns when its answer is written."""


@dataclass
class Recorded:
    """One request as it stood on the wire."""

    head: bytes
    body: bytes

    @property
    def request_line(self) -> bytes:
        return self.head.partition(b"\r\n")[0]

    def values(self, name: str) -> list[bytes]:
        """All values of a header."""
        wanted = name.lower().encode() + b":"
        lines = self.head.split(b"\r\n")[1:]
        return [line.partition(b":")[2].strip() for line in lines if line.lower().startswith(wanted)]


@dataclass
class WorkerSide:
    """One connection, as the script sees it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    num_requests: int = 0
    request: Recorded = field(default_factory=lambda: Recorded(b"", b""))
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def close(self) -> None:
        """As a process that ends in order."""
        self.writer.close()

    def reset(self) -> None:
        """As a process that is killed while data is under way."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def peer_left(self) -> None:
        """Wait until the other side has closed; bytes that still come are dropped."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass
        self.gone.set()


class RawWorker:
    """`async with RawWorker(script) as worker`. Connections stay open until a side closes them.

    It listens on a free port of `host`, or on the Unix socket `path`; `tls` makes it an https worker."""

    def __init__(
        self, script: Script, *, host: str = "127.0.0.1", path: str = "", tls: ssl.SSLContext | None = None
    ) -> None:
        self.script = script
        self.url = f"unix:{path}"
        self._host = host
        self._path = path
        self._tls = tls
        self.requests: list[Recorded] = []
        self.sides: list[WorkerSide] = []
        self.num_open = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> RawWorker:
        if self._path:
            self._server = await asyncio.start_unix_server(self._connected, self._path, limit=1 << 20)
            return self
        self._server = await asyncio.start_server(
            self._connected, self._host, 0, limit=1 << 20, ssl=self._tls
        )
        self.port: int = self._server.sockets[0].getsockname()[1]
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.url = f"{'https' if self._tls else 'http'}://{host}:{self.port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for side in self.sides:
            side.writer.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def id(self) -> str:
        return WorkerAddress.parse(self.url).id

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        side = WorkerSide(reader, writer)
        self.sides.append(side)
        self.num_open += 1
        try:
            while (request := await _read_request(reader)) is not None:
                side.request = request
                side.num_requests += 1
                self.requests.append(request)
                await self.script(side)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the other side has left, or the test is over
        finally:
            self.num_open -= 1
            self._tasks.discard(task)
            side.gone.set()
            writer.close()


async def _read_request(reader: asyncio.StreamReader) -> Recorded | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    recorded = Recorded(head, b"")
    assert not recorded.values("transfer-encoding"), "the gateway sends whole bodies"
    lengths = recorded.values("content-length")
    if lengths:
        recorded.body = await reader.readexactly(int(lengths[0]))
    return recorded


# Answers


def json_answer(body: bytes = b'{"ok":true}', *, extra: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n%b" % (
        extra,
        len(body),
        body,
    )


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
END_OF_CHUNKS = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(text: str) -> bytes:
    """A chat event with one token."""
    return b'data: {"choices":[{"delta":{"content":"%b"}}]}\n\n' % text.encode()


def answering(data: bytes) -> Script:
    """Every request gets the same bytes."""

    async def script(side: WorkerSide) -> None:
        await side.send(data)

    return script
