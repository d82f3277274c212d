"""What is simulated besides the trace and the policy."""

from __future__ import annotations

from dataclasses import dataclass, field

from loadgen.engine import EngineSettings
from loadgen.transfer import TransferModel
from policies.base import Policy
from router.core.disagg import DisaggRules

KV_BYTES_PER_TOKEN = 327_680
"""Of a 70B model, which the default engine is: keys and values, 80 layers, 8 KV heads of 128 numbers of 2
bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """Workers that share requests. A pool without a policy of its own follows the one that is simulated."""

    num_prefill: int
    num_decode: int
    rules: DisaggRules = field(default_factory=DisaggRules)
    network: TransferModel = field(default_factory=lambda: TransferModel(bytes_per_token=KV_BYTES_PER_TOKEN))
    prefill_policy: Policy | None = None
    decode_policy: Policy | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SimSettings:
    """Times in seconds. `num_workers` are whole ones; beside `pools` there may be none.
    `concurrency`: so many clients in a closed loop instead of the trace's arrivals.

    Each KV-event message arrives `event_delay` after its step's end, or never, with probability `event_loss`;
    with `event_replay` a gap is filled by asking again. Each worker dies after `restart_every` on average
    (None: never), with all that it has, and is back after `downtime` with an empty cache.
    """

    num_workers: int
    engine: EngineSettings
    pools: PoolSettings | None = None
    seed: int = 0
    rate_scale: float = 1.0
    concurrency: int | None = None
    event_delay: float = 0.005
    event_loss: float = 0.0
    event_replay: bool = True
    restart_every: float | None = None
    downtime: float = 30.0
