"""Engines that can be simulated: step times and sizes, each with its source."""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.engine import EngineSettings
from loadgen.step_time import StepTime, published_curves


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """`capacity_tokens`: KV-cache room of one worker. `help`: what it stands for, and where it is from."""

    step_time: StepTime
    capacity_tokens: int
    help: str

    def settings(self, block_tokens: int, capacity_tokens: int | None = None) -> EngineSettings:
        """A worker with blocks of that size. Steps vary by 5 %, one block in a hundred is kept free, and a
        prompt may be as long as the cache."""
        capacity = capacity_tokens or self.capacity_tokens
        return EngineSettings(
            block_tokens=block_tokens,
            num_blocks=capacity // block_tokens + 1,
            max_model_len=capacity,
            step_time=self.step_time,
            watermark=0.01,
            noise=0.05,
        )


_DYNAMO = published_curves(16_384)

PROFILES: dict[str, EngineProfile] = {
    "70b": EngineProfile(
        StepTime(
            step_constant=15.0,
            prefill_linear=0.05,
            prefill_quadratic=4.7e-7,
            decode_sequence=0.06,
            decode_linear=4e-5,
        ),
        500_000,
        "a 70B model on 8 accelerators, by arithmetic: 20,000 prompt tokens/s, 15 to 40 ms a token",
    ),
    "dynamo": EngineProfile(
        published_curves(1_048_576),
        1_048_576,
        "the curves of NVIDIA Dynamo's mocker (v1.0), decoding by the share of the cache in use",
    ),
    "flat-decode": EngineProfile(
        StepTime(
            prefill_constant=_DYNAMO.prefill_constant,
            prefill_linear=_DYNAMO.prefill_linear,
            prefill_quadratic=_DYNAMO.prefill_quadratic,
            decode_constant=_DYNAMO.decode_constant,
            decode_linear=_DYNAMO.decode_linear,
            decode_quadratic=_DYNAMO.decode_quadratic,
            full_tokens=16_384,
        ),
        1_048_576,
        "the same curves, decoding at its slowest from 16,384 tokens on: only prefill harms streams",
    ),
}
DEFAULT_PROFILE = "70b"
