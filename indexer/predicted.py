"""The predicted index: the router's own decisions, believed for a time.

For workers that publish no events, and as a bridge between a dispatch and the engine's event. A prediction
lives `ttl_seconds` after its last use; a worker is never believed to hold more blocks than its capacity, the
least recently used go first.

A prediction is unproven until the worker has begun to answer a request that needed it. What an attempt leaves
unproven is retracted when it fails: a worker that answers nothing must not attract what comes next.

Prompts are always stored from their first block, so along a prompt the deadlines never rise, and within a
prompt the last block is the first to go. Every query therefore bisects, and giving memory back can wait for
`expire`.

Time goes in epochs of a worker's own: what was used in this epoch already keeps its place when it is used
again. So the beginning that all prompts share is not moved with every request, and both the time to live and
the order of eviction are true to within one epoch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import islice
from math import inf, nextafter

from indexer.blocks import BlockHash
from indexer.limits import EPOCH_CAPACITY_SHARE, EPOCH_TTL_SHARE, EXPIRE_BLOCKS, PREDICTED_BLOCKS_PER_SLOT
from indexer.radix import Slot


class _Beliefs:
    """What one worker should hold by now."""

    __slots__ = ("capacity", "epoch_deadline", "epoch_room", "expires_at", "unproven")

    def __init__(self) -> None:
        self.capacity = 0
        self.expires_at: dict[BlockHash, float] = {}
        """The least recently used first."""
        self.unproven: set[BlockHash] = set()
        self.epoch_deadline = float("-inf")
        """Of all that is used in this epoch."""
        self.epoch_room = 0
        """How many more blocks this epoch may take: then a prompt never evicts what is as new as itself."""

    def depth(self, hashes: Sequence[BlockHash], deadline: float) -> int:
        """How many leading blocks are believed at least until then."""
        expires_at = self.expires_at
        if expires_at.get(hashes[0], deadline - 1) < deadline:
            return 0
        absent = deadline - 1
        return bisect_left(hashes, True, lo=1, key=lambda block: expires_at.get(block, absent) < deadline)

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
        _evict(beliefs)

    def drop_slot(self, slot: Slot) -> None:
        """Forget a worker and what was believed of it."""
        self._slots.pop(slot, None)

    def clear(self, slot: Slot) -> None:
        """Forget what was believed of a worker, which stays."""
        capacity = self._slots[slot].capacity
        self._slots[slot] = _Beliefs()
        self._slots[slot].capacity = capacity

    def store(self, slot: Slot, hashes: Sequence[BlockHash], *, now: float) -> None:
        """Believe that `slot` holds this prompt, given from its first block on. About 0.2 us for each block
        that was not used in this epoch.

        What was not believed before is unproven.
        """
        beliefs = self._slots[slot]
        hashes = hashes[: beliefs.capacity]
        if not hashes:
            return
        deadline = now + self._ttl_seconds
        if deadline - beliefs.epoch_deadline > self._ttl_seconds / EPOCH_TTL_SHARE:
            beliefs.begin_epoch(deadline)
        moved = hashes[beliefs.depth(hashes, beliefs.epoch_deadline) :]
        if len(moved) > beliefs.epoch_room and deadline > beliefs.epoch_deadline:
            beliefs.begin_epoch(deadline)
            moved = hashes
        beliefs.epoch_room -= len(moved)
        pop = beliefs.expires_at.pop
        beliefs.unproven.update([block_hash for block_hash in moved if pop(block_hash, now) <= now])
        beliefs.expires_at.update(dict.fromkeys(reversed(moved), beliefs.epoch_deadline))
        _evict(beliefs)

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
        _discard(beliefs, [block_hash for block_hash in hashes if block_hash in beliefs.unproven])

    def match(self, hashes: Sequence[BlockHash], candidates: int, *, now: float) -> dict[Slot, int]:
        """Leading blocks that each candidate (bitmask of slots) is believed to hold; absent when none."""
        if not hashes:
            return {}
        after = nextafter(now, inf)
        depths = {}
        for slot, beliefs in self._slots.items():
            if candidates >> slot & 1 and (depth := beliefs.depth(hashes, after)):
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
            _discard(beliefs, due)

    def num_blocks(self, slot: Slot) -> int:
        """Blocks believed of `slot`, those that are due but not yet given back included."""
        return len(self._slots[slot].expires_at) if slot in self._slots else 0

    def is_free(self, slot: Slot) -> bool:
        """Whether nothing of a dropped slot is left."""
        return slot not in self._slots

    def check(self) -> None:
        """Assert every invariant; O(size)."""
        for beliefs in self._slots.values():
            assert len(beliefs.expires_at) <= beliefs.capacity, "no more blocks than the worker has"
            assert beliefs.unproven <= beliefs.expires_at.keys(), "what is unproven is believed"
            deadlines = list(beliefs.expires_at.values())
            assert deadlines == sorted(deadlines), "least recently used first"


def _evict(beliefs: _Beliefs) -> None:
    excess = len(beliefs.expires_at) - beliefs.capacity
    if excess > 0:
        _discard(beliefs, list(islice(beliefs.expires_at, excess)))


def _discard(beliefs: _Beliefs, hashes: Sequence[BlockHash]) -> None:
    for block_hash in hashes:
        del beliefs.expires_at[block_hash]
    beliefs.unproven.difference_update(hashes)
