"""What the relay bench sends: four kinds of traffic, each with the unit that its cost is counted in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Workload:
    """`num_requests` are sent in all, over `num_connections` that each wait for the answer before the next.

    `bar` is the most that the gateway's CPU time per unit may be, in multiples of nginx's; without one the
    figure is only reported.
    """

    name: str
    description: str
    num_connections: int
    num_requests: int
    prompt_bytes: int = 128
    answer: str
    """For the worker: see tests/bench/worker.py."""
    num_events: int = 0
    """Events of one streamed answer; 0 when it is not streamed."""
    bar: float | None = None

    @property
    def unit(self) -> str:
        return "event" if self.num_events else "request"

    @property
    def num_units(self) -> int:
        return self.num_requests * max(1, self.num_events)

    def request(self) -> bytes:
        stream = b"true" if self.num_events else b"false"
        body = b'{"model":"bench","stream":%s,"prompt":"%s"}' % (stream, b"x" * self.prompt_bytes)
        return (
            b"POST /v1/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
            b"user-agent: bench\r\naccept: */*\r\nx-bench: %s\r\ncontent-length: %d\r\n\r\n"
            % (self.answer.encode(), len(body))
        ) + body

    def is_complete(self, received: bytearray) -> bool:
        """Whether a whole answer is there. Chunked ones end with an empty chunk; no event looks like it."""
        if self.num_events:
            return received.endswith(b"\r\n0\r\n\r\n")
        head, end, body = received.partition(b"\r\n\r\n")
        if not end:
            return False
        start = head.lower().find(b"content-length:") + len(b"content-length:")
        return len(body) >= int(head[start:].split(b"\r\n", 1)[0])


# Sizes: one round costs nginx 0.15 s of CPU or more, so that the 10 ms in which the kernel counts CPU time
# stay below the noise.
WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(
            name="small",
            description="small request, not streamed, 32 connections",
            num_connections=32,
            num_requests=20_000,
            answer="plain 200",
            bar=2.5,
        ),
        Workload(
            name="stream",
            description="events 10 ms apart, 32 streams",
            num_connections=32,
            num_requests=64,
            answer="stream 256 10",
            num_events=256,
            bar=1.3,
        ),
        Workload(
            name="burst",
            description="events without a gap, 32 streams",
            num_connections=32,
            num_requests=512,
            answer="stream 128 0",
            num_events=128,
        ),
        Workload(
            name="body32k",
            description="32 KiB request body, not streamed, 32 connections",
            num_connections=32,
            num_requests=8_000,
            prompt_bytes=32 * 1024,
            answer="plain 200",
        ),
    )
}
