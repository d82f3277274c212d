"""The relay bench's client: a closed loop over raw sockets that costs little. A process of its own.

`load.py PORT WORKLOAD SCALE` runs one workload once against a proxy and prints one JSON object: what came
back, and how long requests took. An answer that is not complete and right counts as an error.
"""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass, field

import orjson
import uvloop

from tests.bench.workloads import BY_NAME, Workload

CLOCK = time.perf_counter


@dataclass
class Tally:
    """What all connections of one run saw."""

    to_send: int
    num_requests: int = 0
    num_events: int = 0
    num_errors: int = 0
    first_bytes: list[float] = field(default_factory=list)
    """Seconds from the request's last byte to the answer's first."""
    durations: list[float] = field(default_factory=list)

    def take(self) -> int | None:
        """The number of the next request, counted down; None when there are no more."""
        self.to_send -= 1
        return self.to_send if self.to_send >= 0 else None


class Client(asyncio.Protocol):
    """One kept-alive connection that sends the workload's request until the tally has enough."""

    def __init__(self, workload: Workload, tally: Tally, done: asyncio.Future[None]) -> None:
        self.workload = workload
        self.tally = tally
        self.done = done
        self.received = bytearray()
        self.sent_at = self.first_byte_at = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.send()

    def send(self) -> None:
        number = self.tally.take()
        if number is None:
            self.done.set_result(None)
            self.transport.close()
            return
        request = self.workload.request(number)
        self.received.clear()
        self.first_byte_at = 0.0
        self.sent_at = CLOCK()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        if not self.first_byte_at:
            self.first_byte_at = CLOCK()
        self.received += data
        if self.workload.is_complete(self.received):
            self.count()
            self.send()

    def count(self) -> None:
        num_events = self.received.count(b"data: {")
        right = self.received.startswith(b"HTTP/1.1 200") and num_events == self.workload.num_events
        self.tally.num_requests += 1
        self.tally.num_events += num_events
        self.tally.num_errors += not right
        self.tally.first_bytes.append(self.first_byte_at - self.sent_at)
        self.tally.durations.append(CLOCK() - self.sent_at)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("the proxy closed the connection mid-answer"))


async def run(port: int, workload: Workload, scale: float) -> Tally:
    loop = asyncio.get_running_loop()
    tally = Tally(to_send=max(workload.num_connections, round(workload.num_requests * scale)))
    ends = [loop.create_future() for _ in range(workload.num_connections)]
    for end in ends:
        await loop.create_connection(lambda end=end: Client(workload, tally, end), "127.0.0.1", port)
    await asyncio.gather(*ends)
    return tally


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def main() -> None:
    port, name, scale = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    tally = uvloop.run(run(port, BY_NAME[name], scale))
    report = {
        "num_requests": tally.num_requests,
        "num_events": tally.num_events,
        "num_errors": tally.num_errors,
        "first_byte_p50": percentile(tally.first_bytes, 0.5),
        "first_byte_p99": percentile(tally.first_bytes, 0.99),
        "duration_p50": percentile(tally.durations, 0.5),
        "duration_p99": percentile(tally.durations, 0.99),
    }
    sys.stdout.buffer.write(orjson.dumps(report) + b"\n")


if __name__ == "__main__":
    main()
