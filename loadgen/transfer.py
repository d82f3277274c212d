"""How long it takes to carry a prompt's KV from one engine to another. Pure: mock workers and the simulator
share it.

What is carried and when is the hand-over protocol's business; what the engines do before and after is
`EngineModel`'s.
"""

from __future__ import annotations

from dataclasses import dataclass

LLAMA_8B_KV_BYTES = 131_072
"""Per token of Llama-3-8B: keys and values, 32 layers, 8 KV heads of 128 numbers of 2 bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferModel:
    """A network between engines, in which nothing but the ports of the two ends is scarce."""

    gbps: float = 100.0
    """What a port carries, in 10^9 bits a second."""
    bytes_per_token: int = LLAMA_8B_KV_BYTES
    setup_ms: float = 3.0
    """Per hand-over, however little is carried: measured between two vLLM 0.32 engines on one host."""

    def carry_seconds(self, num_tokens: int) -> float:
        """Of a port's time."""
        return num_tokens * self.bytes_per_token * 8 / (self.gbps * 1e9)

    def seconds(self, num_tokens: int) -> float:
        """Of a hand-over that has both ports to itself."""
        return self.setup_ms / 1000.0 + self.carry_seconds(num_tokens)


class Port:
    """An engine's network port: what it carries goes one after another."""

    __slots__ = ("free_at",)

    def __init__(self) -> None:
        self.free_at = 0.0
        """When all that was given to it will have gone through."""


def transfer(model: TransferModel, num_tokens: int, sender: Port, receiver: Port, *, now: float) -> float:
    """Gives both ports this to carry; returns when all of it will be there. Times in seconds.

    A full-duplex port is busy in the one direction that prefill (out) or decode (in) workers use.
    """
    starts_at = max(now, sender.free_at, receiver.free_at)
    sender.free_at = receiver.free_at = starts_at + model.carry_seconds(num_tokens)
    return sender.free_at + model.setup_ms / 1000.0
