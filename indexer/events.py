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


class GroupKind(StrEnum):
    """What a KV-cache group's layers need of a prefix to go on from its end: all blocks, those of the window
    before the end, or the one state at the end. UNTOLD: the event does not say."""

    FULL = "full"
    WINDOW = "window"
    STATE = "state"
    UNTOLD = "untold"


@dataclass(slots=True)
class BlockStored:
    """Blocks that became resident, in prompt order.

    `token_ids` holds block_tokens ids for every block and `lookahead_tokens` more, which the last block's
    hash covers too; or none at all: the event names blocks that others describe. `extra[i]` is what besides
    tokens, adapter and salt identifies block i (media), encoded; empty when no block has any. `group` is the
    engine's KV-cache group, `window_tokens` what its layers see under GroupKind.WINDOW.
    """

    block_hashes: Sequence[EngineHash]
    parent_hash: EngineHash | None
    token_ids: Sequence[int]
    block_tokens: int
    tier: Tier = Tier.DEVICE
    adapter: str = ""
    cache_salt: str = ""
    extra: Sequence[bytes] = ()
    group: int = 0
    kind: GroupKind = GroupKind.FULL
    window_tokens: int = 0
    lookahead_tokens: int = 0


@dataclass(slots=True)
class HashedBlocks:
    """Blocks that became resident on the device, or of each of which a copy is gone, from a publisher that
    names blocks by our own hashes, as a simulated engine does: they are known without their tokens."""

    block_hashes: Sequence[int]
    parent_hash: int | None = None
    """What the first of those stored continues; None at the beginning of a prompt."""
    is_removal: bool = False


@dataclass(slots=True)
class BlockRemoved:
    """One copy of each named block is gone from that tier."""

    block_hashes: Sequence[EngineHash]
    tier: Tier = Tier.DEVICE
    group: int = 0


@dataclass(slots=True)
class AllBlocksCleared:
    """The publisher dropped every block of every tier."""


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared
"""What engines publish."""

AnyEvent = KvEvent | HashedBlocks


@dataclass(slots=True)
class EventBatch:
    """One message of a publisher.

    `timestamp` is the publisher's clock in Unix seconds. `ignored` has a reason for every event that does not
    matter here or was not understood.
    """

    events: Sequence[AnyEvent]
    timestamp: float = 0.0
    dp_rank: int | None = None
    ignored: Sequence[str] = ()
