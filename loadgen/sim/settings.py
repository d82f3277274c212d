"""What is simulated besides the trace and the policy."""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.engine import EngineSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class SimSettings:
    """Times in seconds. `concurrency`: so many clients in a closed loop instead of the trace's arrivals.

    Each KV-event message arrives `event_delay` after its step's end, or never, with probability `event_loss`;
    with `event_replay` a gap is filled by asking again. Each worker dies after `restart_every` on average
    (None: never), with all that it has, and is back after `downtime` with an empty cache.
    """

    num_workers: int
    engine: EngineSettings
    seed: int = 0
    rate_scale: float = 1.0
    concurrency: int | None = None
    event_delay: float = 0.005
    event_loss: float = 0.0
    event_replay: bool = True
    restart_every: float | None = None
    downtime: float = 30.0
