"""Stored events that wait: their parent, or the blocks that they only name, are not known yet.

They make no claim while they wait, and never start a chain. An event that was missed, a parent that another
tier announces later: what they need may still come. What waited longest goes when a bound is reached; the
index may forget.

What is removed while it waits is remembered with it, so that it is not claimed in the end.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from indexer.events import BlockStored, Tier
from indexer.keys import key_of
from indexer.limits import (
    ORPHAN_BLOCKS,
    ORPHAN_BYTES,
    ORPHAN_EVENT_BYTES,
    ORPHAN_MESSAGES,
    ORPHAN_TOKEN_BYTES,
)
from indexer.runs import Key


@dataclass(slots=True, eq=False)
class Orphan:
    """A stored event that needs to know the block that the engine calls `needed`."""

    needed: Key
    event: BlockStored
    num_bytes: int
    since_message: int
    removed: set[Key] = field(default_factory=set)
    """Of its blocks, while it waited."""


class Orphans:
    """Those of one publisher. Messages are numbered by the caller, in their order."""

    def __init__(self) -> None:
        self.waiting: dict[Key, list[Orphan]] = {}
        """By the block that they need."""
        self._in_order: OrderedDict[int, Orphan] = OrderedDict()
        self._of_block: dict[Key, list[Orphan]] = {}
        self._num_blocks = 0
        self.num_bytes = 0
        self.num_dropped = 0
        """Events that waited in vain."""

    def __len__(self) -> int:
        return len(self._in_order)

    def add(self, needed: Key, event: BlockStored, message: int) -> None:
        """Let an event wait, at the cost of those that have waited longest."""
        num_bytes = ORPHAN_EVENT_BYTES * len(event.block_hashes) + ORPHAN_TOKEN_BYTES * len(event.token_ids)
        if len(event.block_hashes) > ORPHAN_BLOCKS or num_bytes > ORPHAN_BYTES:
            self.num_dropped += 1
            return
        orphan = Orphan(needed, event, num_bytes, message)
        self.waiting.setdefault(needed, []).append(orphan)
        self._in_order[id(orphan)] = orphan
        for engine_hash in event.block_hashes:
            self._of_block.setdefault(key_of(engine_hash), []).append(orphan)
        self._num_blocks += len(event.block_hashes)
        self.num_bytes += num_bytes
        while self._num_blocks > ORPHAN_BLOCKS or self.num_bytes > ORPHAN_BYTES:
            self._drop_oldest()

    def take(self, known: Iterable[Key]) -> list[Orphan]:
        """Those that waited for one of these blocks, which may be named twice; they wait no longer."""
        found = [orphan for key in dict.fromkeys(known) for orphan in self.waiting.get(key, ())]
        for orphan in found:
            self._leave(orphan)
        return found

    def remove(self, key: Key, tier: Tier, group: int) -> bool:
        """Note that a copy of a block is gone; False when it is none of those that wait."""
        for orphan in self._of_block.get(key, ()):
            event = orphan.event
            if (event.tier, event.group) == (tier, group) and key not in orphan.removed:
                orphan.removed.add(key)
                return True
        return False

    def expire(self, message: int) -> None:
        """Drop those that have waited for too many messages."""
        while self._in_order:
            oldest = next(iter(self._in_order.values()))
            if message - oldest.since_message < ORPHAN_MESSAGES:
                return
            self._drop_oldest()

    def clear(self) -> None:
        """Drop all."""
        self.num_dropped += len(self._in_order)
        self.waiting.clear()
        self._in_order.clear()
        self._of_block.clear()
        self._num_blocks = self.num_bytes = 0

    def check(self) -> None:
        """Assert every invariant; O(size)."""
        orphans = list(self._in_order.values())
        assert sum(map(len, self.waiting.values())) == len(orphans), "each waits for one block"
        assert self._num_blocks == sum(len(orphan.event.block_hashes) for orphan in orphans)
        assert self.num_bytes == sum(orphan.num_bytes for orphan in orphans)
        assert self._num_blocks == sum(map(len, self._of_block.values())), "each block is found by its name"

    def _drop_oldest(self) -> None:
        self.num_dropped += 1
        self._leave(next(iter(self._in_order.values())))

    def _leave(self, orphan: Orphan) -> None:
        del self._in_order[id(orphan)]
        _take_out(self.waiting, orphan.needed, orphan)
        for engine_hash in orphan.event.block_hashes:
            _take_out(self._of_block, key_of(engine_hash), orphan)
        self._num_blocks -= len(orphan.event.block_hashes)
        self.num_bytes -= orphan.num_bytes


def _take_out(lists: dict[Key, list[Orphan]], key: Key, orphan: Orphan) -> None:
    rest = lists[key]
    rest.remove(orphan)
    if not rest:
        del lists[key]
