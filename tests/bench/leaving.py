"""A worker and clients that leave it, in one process, so that one clock times both ends.

Prints the worker's port; reads a line with the gateway's port and a number of leaves; prints one JSON object:
by phase, the seconds from each client's closing its connection until the worker's was closed.
"""

from __future__ import annotations

import asyncio
import sys
import time

import orjson
import uvloop

from tests.bench.worker import Worker
from tests.bench.workloads import Workload

PATIENCE_SECONDS = 10.0
PHASES = {"waiting": "hold", "streaming": "stream 100000 10"}


class WatchedWorker(Worker):
    """Tells of an exchange when it begins and when its connection is lost."""

    def __init__(self, events: asyncio.Queue[float]) -> None:
        super().__init__(closes=False)
        self.events = events
        self.is_answering = False

    def answer(self, head: bytes, wanted: bytes) -> None:
        super().answer(head, wanted)
        if wanted.decode() in PHASES.values():
            self.is_answering = True
            self.events.put_nowait(time.perf_counter())

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.is_answering:
            self.events.put_nowait(time.perf_counter())


async def leave(port: int, workload: Workload, events: asyncio.Queue[float]) -> float:
    """Seconds until the worker knew."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(workload.request(0))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await events.get()  # the request is with the worker
        if workload.num_events:
            await reader.readuntil(b"data: ")
        left_at = time.perf_counter()
        writer.close()
        return await events.get() - left_at


async def main() -> None:
    loop = asyncio.get_running_loop()
    events: asyncio.Queue[float] = asyncio.Queue()
    server = await loop.create_server(lambda: WatchedWorker(events), "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    line = await loop.run_in_executor(None, sys.stdin.readline)
    port, num_leaves = map(int, line.split())
    taken: dict[str, list[float]] = {}
    for phase, answer in PHASES.items():
        workload = Workload(
            name=phase, description="", num_connections=1, num_requests=1,
            answer=answer, num_events=int(phase == "streaming"),
        )  # fmt: skip
        taken[phase] = [await leave(port, workload, events) for _ in range(num_leaves)]
    sys.stdout.buffer.write(orjson.dumps(taken) + b"\n")


if __name__ == "__main__":
    uvloop.run(main())
