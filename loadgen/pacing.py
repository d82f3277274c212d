"""How fast a demo may run: engine speed and arrivals that belong together, from a workload's own prefill
work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.engine import EngineSettings
from loadgen.step_time import prompt_prefill_ms
from loadgen.traces import TraceRequest

UTILISATION = 0.65
"""Prefill work of all prompts, nothing cached, over what the engines can do in that time. At 1 even the best
policy is near its limit: decoding takes what the cache saves."""
REQUESTS_PER_SECOND = 25.0
"""What mock workers, gateway and load client carry together on two cores with room to spare."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Engines run `speedup` times as fast as their curves; arrival times are divided by `rate_scale`."""

    speedup: float
    rate_scale: float


def pace_for(requests: Sequence[TraceRequest], num_workers: int) -> Pace:
    """REQUESTS_PER_SECOND on average, and engines just fast enough for UTILISATION."""
    span = requests[-1].arrival_seconds - requests[0].arrival_seconds
    batch = EngineSettings().max_batched_tokens
    prefill_seconds = sum(prompt_prefill_ms(request.input_tokens, batch) for request in requests) / 1000.0
    duration = len(requests) / REQUESTS_PER_SECOND
    return Pace(
        speedup=prefill_seconds / (num_workers * duration * UTILISATION),
        rate_scale=span / duration if span else 1.0,
    )
