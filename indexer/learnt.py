"""Blocks that a worker is believed to hold because its engine reported them as cached, though no event told.

A worker that was warm before we came holds blocks that its events never named to us. A report proves that
they are there; what the engine calls them is unknown. So a removal of a name that we do not know may be of
one of these: the least recently reported one goes, as the engine evicts in that order too. Of the blocks of
unknown names on the worker we thus never claim more than are left.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from indexer.blocks import BlockHash
from indexer.limits import LEARNT_BLOCKS_PER_SLOT


class LearntBlocks:
    """Those of one worker, the least recently reported first."""

    def __init__(self, capacity: int = LEARNT_BLOCKS_PER_SLOT) -> None:
        self._capacity = capacity
        # A plain dict finds its first key ever more slowly as first keys are deleted.
        self._blocks: OrderedDict[BlockHash, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, block_hash: BlockHash) -> bool:
        return block_hash in self._blocks

    def learn(self, hashes: Sequence[BlockHash]) -> int:
        """The engine has just used these, in prompt order; returns how many are new."""
        num_before = len(self._blocks)
        for block_hash in reversed(hashes):  # engines evict a prompt from its end
            self._blocks[block_hash] = None
            self._blocks.move_to_end(block_hash)
        num_new = len(self._blocks) - num_before
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)
        return num_new

    def lose_one(self) -> None:
        """A block of unknown name was removed."""
        if self._blocks:
            self._blocks.popitem(last=False)

    def discard(self, hashes: Iterable[BlockHash]) -> int:
        """These are known otherwise now: stored by an event, or reported as not held. Returns how many were
        here."""
        num_before = len(self._blocks)
        for block_hash in hashes:
            self._blocks.pop(block_hash, None)
        return num_before - len(self._blocks)

    def clear(self) -> None:
        """The worker's cache is empty, or another one."""
        self._blocks.clear()
