"""A worker whose streams wait for each other: none ends before NUM of them run at once.

A process of its own (`python -m tests.support.patient_worker NUM`), since it needs a descriptor for each. It
prints its port, and speaks just enough HTTP/1.1 for the gateway.
"""

from __future__ import annotations

import asyncio
import sys

import uvloop

from router.server import raise_descriptor_limit
from tests.support.raw_worker import END_OF_CHUNKS, STREAM_HEAD, chunk, event, json_answer

MODELS = json_answer(b'{"object":"list","data":[{"id":"m","object":"model"}]}')
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"


class Connection(asyncio.Protocol):
    """One connection; `waiting` holds those whose stream has begun."""

    def __init__(self, num_at_once: int, waiting: list[asyncio.Transport]) -> None:
        self._num_at_once = num_at_once
        self._waiting = waiting
        self._received = b""

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if not found or (head.startswith(b"POST /v1/completions") and not body.endswith(b"}")):
            return
        self._received = b""
        if head.startswith(b"POST /v1/completions"):
            self._begin_stream()
        else:
            self._transport.write(MODELS if head.startswith(b"GET /v1/models ") else NOT_FOUND)

    def _begin_stream(self) -> None:
        self._transport.write(STREAM_HEAD + chunk(event("first")))
        self._waiting.append(self._transport)
        if len(self._waiting) == self._num_at_once:
            for transport in self._waiting:
                transport.write(chunk(event("last")) + END_OF_CHUNKS)


async def main(num_at_once: int) -> None:
    waiting: list[asyncio.Transport] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(num_at_once, waiting), "127.0.0.1", 0, backlog=4096)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    raise_descriptor_limit()
    uvloop.run(main(int(sys.argv[1])))
