"""As many streams at once as the descriptor limit allows, at most 10,000: client, gateway and worker are
processes of their own."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import sys
from collections.abc import AsyncIterator

from router.limits import DESCRIPTORS_SPARE
from router.server import raise_descriptor_limit
from tests.support.gateway_process import REPOSITORY, running_gateway
from tests.support.raw_worker import END_OF_CHUNKS, event
from tests.support.relay import post

CONNECTS_AT_ONCE = 500


class Reader(asyncio.Protocol):
    """Sends one request and keeps what comes until the stream ends or the connection does."""

    def __init__(self) -> None:
        self.received = b""
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.Transport) -> None:
        transport.write(post(b'{"prompt":"p","stream":true}'))

    def data_received(self, data: bytes) -> None:
        self.received += data
        if data.endswith(END_OF_CHUNKS):
            self._end()

    def connection_lost(self, error: Exception | None) -> None:
        self._end()

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    @property
    def is_whole(self) -> bool:
        is_ok = self.received.startswith(b"HTTP/1.1 200 ")
        return is_ok and self.received.index(event("first")) < self.received.index(event("last"))


@contextlib.asynccontextmanager
async def patient_worker(num_at_once: int) -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.patient_worker", str(num_at_once),
        stdout=asyncio.subprocess.PIPE, cwd=REPOSITORY,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(await process.stdout.readline())}"
    finally:
        process.kill()
        await process.wait()
        process._transport.close()  # type: ignore[attr-defined]


async def read_streams(port: int, num_streams: int) -> list[Reader]:
    gate, loop = asyncio.Semaphore(CONNECTS_AT_ONCE), asyncio.get_running_loop()

    async def connect() -> tuple[asyncio.BaseTransport, Reader]:
        async with gate:
            return await loop.create_connection(Reader, "127.0.0.1", port)

    connections = await asyncio.gather(*(connect() for _ in range(num_streams)))
    await asyncio.gather(*(reader.ended for _, reader in connections))
    for transport, _ in connections:
        transport.abort()
    return [reader for _, reader in connections]


async def test_as_many_streams_at_once_as_there_are_descriptors_for() -> None:
    raise_descriptor_limit()
    hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    num_streams = min(10_000, (hard_limit - DESCRIPTORS_SPARE) // 2)
    async with patient_worker(num_streams) as url, running_gateway("--worker-urls", url) as gateway:
        await gateway.printed("serves m")
        readers = await read_streams(gateway.port, num_streams)
        assert [reader.received[:300] for reader in readers if not reader.is_whole] == []
        await gateway.workers(until=lambda rows: rows[0]["load"]["num_active_requests"] == 0)
        assert await gateway.stop() == 0
