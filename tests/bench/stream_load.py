"""The client of the streams bench: opens many streams, keeps them open and counts what each gets.

`stream_load.py PORT STREAMS EVENTS GAP_MS WINDOW_SECONDS` prints `open` when every stream has its first
event, watches them for the window, waits for their ends, then prints one JSON object. A process of its own.
"""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass, field

import orjson
import uvloop

CLOCK = time.perf_counter
OPENING = 64
"""Streams that wait for their first event at a time: enough to keep a proxy busy."""

REQUEST = (
    b"POST /v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b"
)
BODY = b'{"model":"bench","prompt":"one of many","stream":true,"user":"stream %d %d"}'


@dataclass
class Watch:
    """What all streams together saw."""

    is_on: bool = False
    gaps: list[float] = field(default_factory=list)
    """Seconds between the events of a stream, while the window is open."""


class Stream(asyncio.Protocol):
    """One stream from its request to its end."""

    def __init__(self, request: bytes, watch: Watch) -> None:
        loop = asyncio.get_running_loop()
        self.request = request
        self.watch = watch
        self.begun: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.num_events = self.num_in_window = 0
        self.last_at = 0.0
        self.tail = b""

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        if num_events := data.count(b"data: {"):
            self.count(num_events)
        self.tail = (self.tail + data)[-16:]
        if self.tail.endswith(b"[DONE]\n\n\r\n0\r\n\r\n"):
            self.transport.close()
        if not self.begun.done():
            self.begun.set_result(None)

    def count(self, num_events: int) -> None:
        now = CLOCK()
        if self.watch.is_on:
            self.num_in_window += num_events
            self.watch.gaps.append(now - self.last_at)
        self.num_events += num_events
        self.last_at = now

    def connection_lost(self, exc: Exception | None) -> None:
        for future in (self.begun, self.ended):
            if not future.done():
                future.set_result(None)

    def is_whole(self, num_events: int) -> bool:
        """Every event came, then the end."""
        return self.num_events == num_events and self.tail.endswith(b"0\r\n\r\n")


async def run(port: int, num_streams: int, num_events: int, gap_ms: int, window: float) -> dict[str, object]:
    loop = asyncio.get_running_loop()
    watch = Watch()
    body = BODY % (num_events, gap_ms)
    request = REQUEST % (len(body), body)
    opening = asyncio.Semaphore(OPENING)

    async def open_stream() -> Stream:
        async with opening:
            _, stream = await loop.create_connection(lambda: Stream(request, watch), "127.0.0.1", port)
            await stream.begun
            return stream

    started_at = CLOCK()
    streams = await asyncio.gather(*(open_stream() for _ in range(num_streams)))
    opened_in = CLOCK() - started_at
    num_open = sum(not stream.ended.done() for stream in streams)
    say(b"open")
    watch.is_on = True
    await asyncio.sleep(window)
    watch.is_on = False
    num_open = min(num_open, sum(not stream.ended.done() for stream in streams))
    say(b"watched")
    await asyncio.gather(*(stream.ended for stream in streams))
    gaps = sorted(watch.gaps) or [0.0]
    return {
        "opened_in": opened_in,
        "num_open": num_open,
        "num_errors": sum(not stream.is_whole(num_events) for stream in streams),
        "events_per_stream": [f(stream.num_in_window for stream in streams) for f in (min, max)],
        "gap_p1": gaps[len(gaps) // 100],
        "gap_p50": gaps[len(gaps) // 2],
        "gap_p99": gaps[len(gaps) * 99 // 100],
    }


def say(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    port, num_streams, num_events, gap_ms, window = map(int, sys.argv[1:])
    say(orjson.dumps(uvloop.run(run(port, num_streams, num_events, gap_ms, window))))
