"""A worker that costs next to nothing: what the relay bench puts behind each proxy. A process of its own.

It prints its ports, one for each worker it plays, then speaks just enough HTTP/1.1 for clean clients (one
request at a time, Content-Length bodies) and answers what the body's `user` says, or a chat's first message,
which every gateway hands on: `plain SIZE` a JSON answer of SIZE bytes, `stream EVENTS GAP_MS` that many
server-sent events as chunks of their own, GAP_MS apart (0: as fast as the socket takes them), `hold` nothing
ever. Called with `close` as its second argument it closes each connection after its answer, and says so; else
it keeps them.
"""

from __future__ import annotations

import asyncio
import re
import sys
from functools import partial

import uvloop

EVENT = b'data: {"id":"cmpl-0","object":"text_completion","choices":[{"index":0,"text":" token"}]}\n\n'
CHUNK = b"%x\r\n%s\r\n" % (len(EVENT), EVENT)
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n"
)
STREAM_END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
WANTED = re.compile(rb'"(?:user|content)": ?"(plain \d+|stream \d+ \d+|hold)\b')
MODELS = b'{"object":"list","data":[{"id":"bench","object":"model","created":0,"owned_by":"bench"}]}'


CLOSE_LINE = b"connection: close\r\n"


class Worker(asyncio.Protocol):
    """One connection."""

    def __init__(self, *, closes: bool) -> None:
        self.closes = closes
        self.end_of_head = CLOSE_LINE + b"\r\n" if closes else b"\r\n"

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.received = b""
        self.remaining: int | None = None  # events of the stream under way
        self.gap = 0.0
        self.timer: asyncio.TimerHandle | None = None
        self.writable = True

    def data_received(self, data: bytes) -> None:
        self.received += data
        end_of_head = self.received.find(b"\r\n\r\n")
        if end_of_head < 0:
            return
        head = self.received[:end_of_head].lower()
        if len(self.received) < end_of_head + 4 + int(header(head, b"content-length") or 0):
            return
        wanted = WANTED.search(self.received, end_of_head)
        self.received = b""
        self.answer(head, wanted[1] if wanted else b"none")

    def answer(self, head: bytes, wanted: bytes) -> None:
        kind, *numbers = wanted.split()
        if kind == b"plain":
            padding = b" " * int(numbers[0])
            self.respond(b"200 OK", b'{"object":"text_completion","choices":[]}' + padding)
        elif kind == b"stream":
            self.remaining, self.gap = int(numbers[0]), int(numbers[1]) / 1000
            self.transport.write(STREAM_HEAD + self.end_of_head)
            self.step()
        elif kind == b"hold":
            pass
        elif b" /v1/models " in head:
            self.respond(b"200 OK", MODELS)
        elif b" /health " in head:
            self.respond(b"200 OK", b"")
        else:
            self.respond(b"404 Not Found", b'{"detail":"Not Found"}')

    def respond(self, status: bytes, body: bytes) -> None:
        head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n" % (
            status,
            len(body),
        )
        self.transport.write(head + self.end_of_head + body)
        self.ended()

    def ended(self) -> None:
        if self.closes:
            self.transport.close()

    def step(self) -> None:
        """Write the next event in a write of its own, as engines do, and come back after the gap."""
        self.timer = None
        if self.remaining is None or not self.writable:
            return
        if self.remaining == 0:
            self.remaining = None
            self.transport.write(STREAM_END)
            self.ended()
            return
        self.remaining -= 1
        self.transport.write(CHUNK)
        self.timer = asyncio.get_running_loop().call_later(self.gap, self.step)

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        if self.timer is None:
            self.step()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.timer is not None:
            self.timer.cancel()


def header(head: bytes, name: bytes) -> bytes | None:
    """Value of a header in a lower-case head."""
    start = head.find(b"\r\n" + name + b":")
    if start < 0:
        return None
    end = head.find(b"\r\n", start + 2)
    return head[start + len(name) + 3 : end if end >= 0 else len(head)].strip()


async def serve(num_workers: int, *, closes: bool) -> None:
    loop = asyncio.get_running_loop()
    connection = partial(Worker, closes=closes)
    servers = [await loop.create_server(connection, "127.0.0.1", 0) for _ in range(num_workers)]
    sys.stdout.write(" ".join(str(server.sockets[0].getsockname()[1]) for server in servers) + "\n")
    sys.stdout.flush()
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), closes="close" in sys.argv[2:]))
