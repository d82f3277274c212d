"""What the relay bench sends: kinds of traffic, each with the unit that its cost is counted in."""

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
    routed_by_prompt: bool = False
    """The gateways look at the prompt (kvgate: `kv` without KV events), and each request has its own."""
    is_chat: bool = False
    bar: float | None = None

    @property
    def unit(self) -> str:
        return "event" if self.num_events else "request"

    def request(self, number: int) -> bytes:
        body = self._chat(number) if self.is_chat else self._completion(number)
        return (
            b"POST %s HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
            b"user-agent: bench\r\naccept: */*\r\ncontent-length: %d\r\n\r\n"
            % (b"/v1/chat/completions" if self.is_chat else b"/v1/completions", len(body))
        ) + body

    def _completion(self, number: int) -> bytes:
        """The instruction to the worker stands in a field that every gateway forwards."""
        return b'{"model":"bench","stream":%s,"user":"%s","prompt":"%s"}' % (
            b"true" if self.num_events else b"false",
            self.answer.encode(),
            self._prompt(number),
        )

    def _chat(self, number: int) -> bytes:
        """sglang-router drops a chat's `user`, so here the instruction begins the message."""
        return b'{"model":"bench","stream":%s,"messages":[{"role":"user","content":"%s %s"}]}' % (
            b"true" if self.num_events else b"false",
            self.answer.encode(),
            self._prompt(number),
        )

    def _prompt(self, number: int) -> bytes:
        """Where it matters, the next turn of one of 32 conversations: a quarter is every prompt's beginning,
        the last KiB the turn's own."""
        if not self.routed_by_prompt:
            return b"x" * self.prompt_bytes
        beginning = b"All begin alike. " * (self.prompt_bytes // 4 // 17)
        turn = b"Turn %8d. " % number * (1024 // 15)
        between = b"Conversation %2d. " % (number % 32)
        return beginning + between * ((self.prompt_bytes - len(beginning) - len(turn)) // len(between)) + turn

    def is_complete(self, received: bytearray) -> bool:
        """Whether a whole answer is there. Chunked ones end with an empty chunk; no event looks like it."""
        if self.num_events:
            return received.endswith(b"\r\n0\r\n\r\n")
        head, end, body = received.partition(b"\r\n\r\n")
        if not end:
            return False
        start = head.lower().find(b"content-length:") + len(b"content-length:")
        return len(body) >= int(head[start:].split(b"\r\n", 1)[0])


# Sizes: one round costs nginx 0.1 s of CPU or more, so that the 10 ms in which the kernel counts CPU time
# stay below the noise.
WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(
            name="small",
            description="small request, not streamed, 32 connections",
            num_connections=32,
            num_requests=12_000,
            answer="plain 200",
            bar=2.0,
        ),
        Workload(
            name="burst",
            description="128 events without a gap, 32 streams",
            num_connections=32,
            num_requests=512,
            answer="stream 128 0",
            num_events=128,
            bar=1.5,
        ),
        Workload(
            name="paced",
            description="128 events 10 ms apart, 128 streams",
            num_connections=128,
            num_requests=256,
            answer="stream 128 10",
            num_events=128,
            bar=1.15,
        ),
        Workload(
            name="body32k",
            description="32 KiB request body, not streamed, 32 connections",
            num_connections=32,
            num_requests=6_000,
            prompt_bytes=32 * 1024,
            answer="plain 200",
            bar=2.0,
        ),
        Workload(
            name="prompt32k",
            description="32 KiB prompt of a conversation, routed by its prefix, 32 connections",
            num_connections=32,
            num_requests=4_000,
            prompt_bytes=32 * 1024,
            answer="plain 200",
            routed_by_prompt=True,
            bar=4.0,
        ),
    )
}

CHAT = Workload(
    name="chat",
    description="small chat request, not streamed, 32 connections",
    num_connections=32,
    num_requests=12_000,
    answer="plain 200",
    is_chat=True,
)
"""For gateways that read every body into types of their own."""

ALONE = Workload(
    name="alone",
    description="one small request at a time",
    num_connections=1,
    num_requests=300,
    answer="plain 200",
)
"""For latencies: nothing waits for anything but what it needs."""

BY_NAME = {**WORKLOADS, CHAT.name: CHAT, ALONE.name: ALONE}
