"""The predicted index: the router's own decisions, believed for a time.

For workers that publish no events, and as a bridge between a dispatch and the engine's event. A prediction
lives `ttl_seconds` after its last use; a worker is never believed to hold more blocks than its capacity, the
least recently used go first.

A prediction is unproven until the worker has begun to answer a request that needed it. What an attempt leaves
unproven is retracted when it fails: a worker that answers nothing must not attract what comes next.

Prompts are always stored from their first block, so along a prompt the deadlines never rise, and within a
prompt the last block is the first to go. A query therefore finds the live part of a match by bisection, and
giving memory back can wait for `expire`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import islice

from indexer.blocks import BlockHash
from indexer.limits import EXPIRE_BLOCKS, PREDICTED_BLOCKS_PER_SLOT, SWEEP_BLOCKS
from indexer.radix import RadixIndex, Slot


class PredictedIndex:
    """Block hash -> workers that should hold it by now."""

    def __init__(self, ttl_seconds: float) -> None:
        self._ttl_seconds = ttl_seconds
        self._index = RadixIndex()
        self._expires_at: dict[Slot, dict[BlockHash, float]] = {}  # least recently used first
        self._capacity: dict[Slot, int] = {}
        self._unproven: dict[Slot, set[BlockHash]] = {}

    def add_slot(self, slot: Slot, capacity_blocks: int | None) -> None:
        """Make room for a worker, or change its capacity. None: unknown, PREDICTED_BLOCKS_PER_SLOT holds."""
        self._expires_at.setdefault(slot, {})
        self._unproven.setdefault(slot, set())
        self._capacity[slot] = PREDICTED_BLOCKS_PER_SLOT if capacity_blocks is None else capacity_blocks
        self._evict(slot)

    def drop_slot(self, slot: Slot) -> None:
        """Forget a worker and what was believed of it."""
        self._expires_at.pop(slot, None)
        self._capacity.pop(slot, None)
        self._unproven.pop(slot, None)
        self._index.drop_slot(slot)

    def clear(self, slot: Slot) -> None:
        """Forget what was believed of a worker, which stays."""
        self._expires_at[slot] = {}
        self._unproven[slot] = set()
        self._index.drop_slot(slot)

    def store(self, slot: Slot, hashes: Sequence[BlockHash], *, now: float) -> None:
        """Believe that `slot` holds this prompt, given from its first block on. About 0.2 us a block.

        What was not believed before is unproven.
        """
        expires_at = self._expires_at[slot]
        hashes = hashes[: self._capacity[slot]]
        self._index.store(slot, hashes)
        unbelieved = [block_hash for block_hash in hashes if expires_at.pop(block_hash, now) <= now]
        self._unproven[slot].update(unbelieved)
        expires_at.update(dict.fromkeys(reversed(hashes), now + self._ttl_seconds))
        self._evict(slot)

    def confirm(self, slot: Slot, hashes: Sequence[BlockHash]) -> None:
        """The worker has computed this prompt: what is believed of it is proven."""
        if unproven := self._unproven[slot]:
            unproven.difference_update(hashes)

    def retract(self, slot: Slot, hashes: Sequence[BlockHash]) -> None:
        """Forget what is unproven among these blocks, the end of a prompt that was not computed."""
        unproven = self._unproven[slot]
        self._discard(slot, [block_hash for block_hash in hashes if block_hash in unproven])

    def match(self, hashes: Sequence[BlockHash], candidates: int, *, now: float) -> dict[Slot, int]:
        """Leading blocks that each candidate (bitmask of slots) is believed to hold; absent when none."""
        depths = self._index.match(hashes, candidates)
        for slot, depth in list(depths.items()):
            expires_at = self._expires_at[slot]
            if expires_at[hashes[depth - 1]] > now:
                continue
            live = bisect_left(hashes, True, hi=depth, key=lambda h: self._expires_at[slot][h] <= now)
            if live:
                depths[slot] = live
            else:
                del depths[slot]
        return depths

    def expire(self, *, now: float) -> None:
        """Give back memory of what is due, in a bounded slice."""
        budget = EXPIRE_BLOCKS
        for slot, expires_at in self._expires_at.items():
            due: list[BlockHash] = []
            for block_hash, deadline in expires_at.items():
                if deadline > now or len(due) >= budget:
                    break
                due.append(block_hash)
            budget -= len(due)
            self._discard(slot, due)
        self._index.sweep(SWEEP_BLOCKS)

    def num_blocks(self, slot: Slot) -> int:
        """Blocks believed of `slot`, those that are due but not yet given back included."""
        return self._index.num_blocks(slot)

    def is_free(self, slot: Slot) -> bool:
        """Whether nothing of a dropped slot is left."""
        return slot not in self._expires_at and self._index.is_free(slot)

    def check(self) -> None:
        """Assert every invariant; O(size)."""
        self._index.check()
        for slot, expires_at in self._expires_at.items():
            assert len(expires_at) == self._index.num_blocks(slot), "every believed block has a deadline"
            assert len(expires_at) <= self._capacity[slot], "no more blocks than the worker has"
            assert self._unproven[slot] <= expires_at.keys(), "what is unproven is believed"
            deadlines = list(expires_at.values())
            assert deadlines == sorted(deadlines), "least recently used first"

    def _evict(self, slot: Slot) -> None:
        expires_at = self._expires_at[slot]
        excess = len(expires_at) - self._capacity[slot]
        if excess > 0:
            self._discard(slot, list(islice(expires_at, excess)))

    def _discard(self, slot: Slot, hashes: Sequence[BlockHash]) -> None:
        expires_at = self._expires_at[slot]
        for block_hash in hashes:
            del expires_at[block_hash]
        self._unproven[slot].difference_update(hashes)
        self._index.truncate(slot, hashes)
