"""KV-cache events as plain values, whichever engine sent them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

EngineHash = int | bytes
"""An engine's own name of a block: opaque, only ever a key."""


class Tier(StrEnum):
    """Where a worker keeps a block."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"


@dataclass(slots=True)
class BlockStored:
    """Blocks that became resident, in prompt order; `token_ids` holds block_tokens of them per block.

    `extra[i]` is what besides tokens, adapter and salt identifies block i (media), encoded; empty when nothing.
    """

    block_hashes: Sequence[EngineHash]
    parent_hash: EngineHash | None
    token_ids: Sequence[int]
    block_tokens: int
    tier: Tier = Tier.DEVICE
    adapter: str = ""
    cache_salt: str = ""
    extra: Sequence[bytes] = ()


@dataclass(slots=True)
class BlockRemoved:
    """One copy of each named block is gone from that tier."""

    block_hashes: Sequence[EngineHash]
    tier: Tier = Tier.DEVICE


@dataclass(slots=True)
class AllBlocksCleared:
    """The publisher dropped every block of every tier."""


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared


@dataclass(slots=True)
class EventBatch:
    """One message of a publisher. `ignored` counts by reason the events that were understood but do not matter
    here, or not understood at all."""

    events: Sequence[KvEvent]
    timestamp: float = 0.0
    dp_rank: int | None = None
    ignored: Sequence[str] = ()
