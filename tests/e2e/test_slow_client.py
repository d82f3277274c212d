"""A client that reads nothing while its worker has 100 MB for it: what that costs the gateway's process."""

from __future__ import annotations

import asyncio

import psutil

from tests.support.gateway_process import running_gateway
from tests.support.raw_worker import (
    END_OF_CHUNKS,
    STREAM_HEAD,
    RawWorker,
    WorkerSide,
    chunk,
    event,
    json_answer,
)
from tests.support.relay import post

GROWTH_MAX = 1 << 20
BURST = chunk(event("x" * 1000)) * 1000
NUM_BURSTS = 100


async def test_a_client_that_reads_nothing_costs_at_most_a_megabyte() -> None:
    sent = 0

    async def script(side: WorkerSide) -> None:
        nonlocal sent
        if b" /v1/completions " not in side.request.request_line:
            await side.send(json_answer(b'{"data":[{"id":"m"}]}'))
            return
        await side.send(STREAM_HEAD)
        for _ in range(NUM_BURSTS if b"much" in side.request.body else 1):
            await side.send(BURST)
            sent += len(BURST)
        await side.send(END_OF_CHUNKS)

    async def is_stalled() -> bool:
        """Nothing was taken from the worker for a while."""
        before = sent
        for _ in range(10):
            await asyncio.sleep(0.02)
            if sent != before:
                return False
        return before > 0

    async with RawWorker(script) as worker, running_gateway("--worker-urls", worker.url) as running:
        await running.workers(until=lambda rows: all(row["state"] == "healthy" for row in rows))
        for _ in range(3):  # what any stream needs is there before
            await ask(running.port, b"little")
        memory = psutil.Process(running.process.pid).memory_info
        sent, before = 0, memory().rss
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.transport.pause_reading()
        writer.write(request(b"much"))
        async with asyncio.timeout(20):
            while not await is_stalled():
                assert memory().rss - before <= GROWTH_MAX
        assert sent < NUM_BURSTS * len(BURST) // 2
        assert memory().rss - before <= GROWTH_MAX
        writer.transport.resume_reading()
        assert await num_received(reader) > NUM_BURSTS * len(BURST)
        assert memory().rss - before <= GROWTH_MAX
        writer.transport.abort()


def request(prompt: bytes) -> bytes:
    return post(b'{"model":"m","prompt":"%b"}' % prompt)


async def ask(port: int, prompt: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request(prompt))
    assert await num_received(reader) > len(BURST)
    writer.transport.abort()


async def num_received(reader: asyncio.StreamReader) -> int:
    """Bytes of one streamed answer, which must come to its end."""
    num, tail = 0, b""
    while not tail.endswith(END_OF_CHUNKS):
        data = await reader.read(1 << 20)
        assert data, "the answer was cut"
        num += len(data)
        tail = (tail + data)[-len(END_OF_CHUNKS) :]
    return num
