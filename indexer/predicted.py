"""The predicted index: the router's own decisions, believed for a time.

For workers that publish no events, and as a bridge between a dispatch and the engine's event. A prediction
lives `ttl_seconds` after its last use; a worker is never believed to hold more blocks than its capacity, the
least recently used go first.

A prediction is unproven until the worker has begun to answer a request that needed it. What an attempt leaves
unproven is retracted when it fails: a worker that answers nothing must not attract what comes next.

Prompts are always stored from their first block, so along a prompt the deadlines never rise, and within a
prompt the last block is the first to go. Every query therefore bisects, and giving memory back can wait for
`expire`.

Hashes of byte prompts cover several blocks each, see `byte_blocks`: capacity and counts are in blocks, depths
in hashes.

Time goes in epochs of a worker's own: what was used in this epoch already keeps its place when it is used
again. So the beginning that all prompts share is not moved with every request, and both the time to live and
the order of eviction are true to within one epoch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import inf, nextafter

from indexer.blocks import BlockHash, Unit
from indexer.byte_blocks import COVERED, NARROW_BLOCKS, depth_within
from indexer.limits import EPOCH_CAPACITY_SHARE, EPOCH_TTL_SHARE, EXPIRE_BLOCKS, PREDICTED_BLOCKS_PER_SLOT
from indexer.radix import Slot


class _Beliefs:
    """What one worker should hold by now."""

    __slots__ = (
        "capacity",
        "epoch_deadline",
        "epoch_room",
        "expires_at",
        "num_extra_blocks",
        "unproven",
        "widths",
    )

    def __init__(self) -> None:
        self.capacity = 0
        self.expires_at: dict[BlockHash, float] = {}
        """The least recently used first."""
        self.unproven: set[BlockHash] = set()
        self.widths: dict[BlockHash, int] = {}
        """Blocks covered by a hash, where that is more than one."""
        self.num_extra_blocks = 0
        """What `widths` adds to one block for each hash."""
        self.epoch_deadline = float("-inf")
        """Of all that is used in this epoch."""
        self.epoch_room = 0
        """How many more blocks this epoch may take: then a prompt never evicts what is as new as itself."""

    @property
    def num_blocks(self) -> int:
        return len(self.expires_at) + self.num_extra_blocks

    def depth(self, hashes: Sequence[BlockHash], deadline: float, guess: int = 0) -> int:
        """How many leading hashes are believed at least until then. `guess`: tried first, where above 0."""
        get, absent = self.expires_at.get, deadline - 1
        if get(hashes[0], absent) < deadline:
            return 0
        if (
            guess
            and get(hashes[guess - 1], absent) >= deadline
            and (guess == len(hashes) or get(hashes[guess], absent) < deadline)
        ):
            return guess
        return bisect_left(hashes, True, lo=1, key=lambda block: get(block, absent) < deadline)

    def move(self, hashes: Sequence[BlockHash], now: float) -> None:
        """These were used in this epoch: the end of a prompt, or all of it."""
        pop = self.expires_at.pop
        self.unproven.update([block_hash for block_hash in hashes if pop(block_hash, now) <= now])
        self.expires_at.update(dict.fromkeys(reversed(hashes), self.epoch_deadline))

    def widen(self, hashes: Sequence[BlockHash], first: int) -> None:
        """Notes how much a byte prompt's hashes cover, from the one numbered `first` on."""
        covered, widths = COVERED[Unit.BYTES], self.widths
        for depth in range(max(first, NARROW_BLOCKS), len(hashes)):
            if hashes[depth] not in widths:
                width = widths[hashes[depth]] = covered[depth + 1] - covered[depth]
                self.num_extra_blocks += width - 1

    def evict(self) -> None:
        """Down to the capacity."""
        excess = self.num_blocks - self.capacity
        if excess <= 0:
            return
        widths, due = self.widths, []
        for block_hash in self.expires_at:
            due.append(block_hash)
            excess -= widths.get(block_hash, 1)
            if excess <= 0:
                break
        self.discard(due)

    def discard(self, hashes: Sequence[BlockHash]) -> None:
        for block_hash in hashes:
            del self.expires_at[block_hash]
            if block_hash in self.widths:
                self.num_extra_blocks -= self.widths.pop(block_hash) - 1
        self.unproven.difference_update(hashes)

    def begin_epoch(self, deadline: float) -> None:
        self.epoch_deadline = deadline
        self.epoch_room = self.capacity // EPOCH_CAPACITY_SHARE


class PredictedIndex:
    """Block hash -> workers that should hold it by now."""

    def __init__(self, ttl_seconds: float) -> None:
        self._ttl_seconds = ttl_seconds
        self._slots: dict[Slot, _Beliefs] = {}

    def add_slot(self, slot: Slot, capacity_blocks: int | None) -> None:
        """Make room for a worker, or change its capacity. None: unknown, PREDICTED_BLOCKS_PER_SLOT holds."""
        beliefs = self._slots.setdefault(slot, _Beliefs())
        beliefs.capacity = PREDICTED_BLOCKS_PER_SLOT if capacity_blocks is None else capacity_blocks
        beliefs.evict()

    def drop_slot(self, slot: Slot) -> None:
        """Forget a worker and what was believed of it."""
        self._slots.pop(slot, None)

    def clear(self, slot: Slot) -> None:
        """Forget what was believed of a worker, which stays."""
        capacity = self._slots[slot].capacity
        self._slots[slot] = _Beliefs()
        self._slots[slot].capacity = capacity

    def store(self, slot: Slot, hashes: Sequence[BlockHash], *, now: float, unit: Unit = Unit.TOKENS) -> None:
        """Believe that `slot` holds this prompt, given from its first block on. About 0.2 us for each block
        that was not used in this epoch.

        What was not believed before is unproven.
        """
        beliefs = self._slots[slot]
        covered = COVERED[unit]
        if covered[len(hashes)] > beliefs.capacity:
            hashes = hashes[: depth_within(beliefs.capacity, unit)]
        if not hashes:
            return
        deadline = now + self._ttl_seconds
        if deadline - beliefs.epoch_deadline > self._ttl_seconds / EPOCH_TTL_SHARE:
            beliefs.begin_epoch(deadline)
        depth = beliefs.depth(hashes, beliefs.epoch_deadline)
        if covered[len(hashes)] - covered[depth] > beliefs.epoch_room and deadline > beliefs.epoch_deadline:
            beliefs.begin_epoch(deadline)
            depth = 0
        if depth < len(hashes):
            beliefs.epoch_room -= covered[len(hashes)] - covered[depth]
            beliefs.move(hashes[depth:], now)
            if unit is Unit.BYTES:
                beliefs.widen(hashes, depth)
            beliefs.evict()

    def confirm(self, slot: Slot, hashes: Sequence[BlockHash]) -> None:
        """The worker has computed this prompt: what is believed of it is proven."""
        beliefs = self._slots[slot]
        unproven, expires_at = beliefs.unproven, beliefs.expires_at
        if unproven:
            # What is proven comes first, what was evicted meanwhile last.
            first = bisect_left(hashes, True, key=lambda block: block in unproven or block not in expires_at)
            unproven.difference_update(hashes[first:])

    def retract(self, slot: Slot, hashes: Sequence[BlockHash]) -> None:
        """Forget what is unproven among these blocks, the end of a prompt that was not computed."""
        beliefs = self._slots[slot]
        beliefs.discard([block_hash for block_hash in hashes if block_hash in beliefs.unproven])

    def match(self, hashes: Sequence[BlockHash], candidates: int, *, now: float) -> dict[Slot, int]:
        """How many leading hashes each candidate (bitmask of slots) is believed to hold; absent when none."""
        if not hashes:
            return {}
        after = nextafter(now, inf)
        depths = {}
        depth = 0
        for slot, beliefs in self._slots.items():
            # Many workers hold as much as another: what all prompts begin with.
            if candidates >> slot & 1 and (depth := beliefs.depth(hashes, after, guess=depth)):
                depths[slot] = depth
        return depths

    def expire(self, *, now: float) -> None:
        """Give back memory of what is due, in a bounded slice."""
        budget = EXPIRE_BLOCKS
        for beliefs in self._slots.values():
            due: list[BlockHash] = []
            for block_hash, deadline in beliefs.expires_at.items():
                if deadline > now or len(due) >= budget:
                    break
                due.append(block_hash)
            budget -= len(due)
            beliefs.discard(due)

    def num_blocks(self, slot: Slot) -> int:
        """Blocks believed of `slot`, those that are due but not yet given back included."""
        beliefs = self._slots.get(slot)
        return len(beliefs.expires_at) + beliefs.num_extra_blocks if beliefs else 0

    def is_free(self, slot: Slot) -> bool:
        """Whether nothing of a dropped slot is left."""
        return slot not in self._slots

    def check(self) -> None:
        """Assert every invariant; O(size)."""
        for beliefs in self._slots.values():
            assert beliefs.num_blocks <= beliefs.capacity, "no more blocks than the worker has"
            assert beliefs.widths.keys() <= beliefs.expires_at.keys(), "widths are of what is believed"
            assert beliefs.num_extra_blocks == sum(width - 1 for width in beliefs.widths.values())
            assert beliefs.unproven <= beliefs.expires_at.keys(), "what is unproven is believed"
            deadlines = list(beliefs.expires_at.values())
            assert deadlines == sorted(deadlines), "least recently used first"
