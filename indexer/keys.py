"""What one worker holds in one tier: its engine's names of blocks -> our hashes, kept in step with the index.

Engines name blocks by hashes of their own, which later events use as parents and in removals. They are
reduced to keys of HASH_BITS bits, whatever their kind. A map belongs to one worker: engines with random
seeds never agree on names, models and adapters of different paths give equal names to different blocks, and
a router keeps most blocks on one worker anyway. So an entry goes exactly when its worker lets it go, and a
worker goes with its map.

vLLM does not merge equal blocks: it stores a block again when it computed it again, and removes it once per
copy. Copies beyond the first are counted in a map of exceptions. SGLang's trees hold a block once.

Memory of a block of one worker, index included: two dict entries of 27 to 54 bytes (as the dicts fill) and
two integers of 32. Measured: 139 to 162 bytes for blocks that one worker holds, 107 to 121 for those of
eight.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from indexer.blocks import HASH_BITS, HASH_MASK, BlockHash
from indexer.events import EngineHash
from indexer.limits import KEY_SHARDS
from indexer.radix import RadixIndex, Slot

Key = int
"""An engine hash, reduced."""

_SHARD_SHIFT = HASH_BITS - (KEY_SHARDS - 1).bit_length()


def key_of(engine_hash: EngineHash) -> Key:
    """The end of the hash, as engines do it that shorten their digests; signed integers bit for bit."""
    if isinstance(engine_hash, int):
        return engine_hash & HASH_MASK
    return int.from_bytes(engine_hash[-8:], "big") & HASH_MASK


class KeyMap:
    """The blocks of one slot in one index."""

    def __init__(self, index: RadixIndex, slot: Slot, *, keeps_copies: bool = True) -> None:
        self._index = index
        self._slot = slot
        self._keeps_copies = keeps_copies
        self._shards: list[dict[Key, BlockHash]] = [{} for _ in range(KEY_SHARDS)]
        self._copies: dict[Key, int] = {}  # beyond the first

    def block_hash(self, key: Key) -> BlockHash | None:
        """Our hash of the block that the engine calls `key`; None when it is not held."""
        return self._shards[key >> _SHARD_SHIFT].get(key)

    def store(self, keys: Iterable[Key], hashes: Sequence[BlockHash]) -> int:
        """A copy of each block became resident; returns how many were not held before."""
        shards = self._shards
        renamed: list[BlockHash] = []
        for key, block_hash in zip(keys, hashes, strict=True):
            shard = shards[key >> _SHARD_SHIFT]
            if key not in shard:
                shard[key] = block_hash
            elif shard[key] == block_hash:
                self._add_copy(key, block_hash)
            else:
                renamed.append(self._rename(shard, key, block_hash))
        num_new = self._index.store(self._slot, hashes)
        return num_new - self._index.truncate(self._slot, renamed)

    def remove(self, key: Key) -> bool:
        """One copy of the block is gone; True when it was the last and the worker no longer holds it."""
        shard = self._shards[key >> _SHARD_SHIFT]
        block_hash = shard.get(key)
        if block_hash is None or self._drop_copy(key):
            return False
        del shard[key]
        return self._index.remove(self._slot, block_hash)

    def clear(self) -> list[dict[Key, BlockHash]]:
        """Forget everything; returns what was held, for its memory to be given back in slices."""
        shards, self._shards = self._shards, [{} for _ in range(KEY_SHARDS)]
        self._copies = {}
        self._index.drop_slot(self._slot)
        return [shard for shard in shards if shard]

    def __len__(self) -> int:
        return sum(map(len, self._shards))

    def check(self) -> None:
        """Assert every invariant; O(size)."""
        for key, copies in self._copies.items():
            assert copies > 0, "copies are counted beyond the first"
            assert self.block_hash(key) is not None, "copies are of blocks that are held"
        held = {block_hash for shard in self._shards for block_hash in shard.values()}
        assert self._index.num_blocks(self._slot) <= len(held), (
            "what the index claims is held under some name"
        )
        for number, shard in enumerate(self._shards):
            assert all(key >> _SHARD_SHIFT == number for key in shard), "a key is in its shard"

    def _add_copy(self, key: Key, block_hash: BlockHash) -> None:
        if not self._keeps_copies:
            return
        if self._index.holds(self._slot, block_hash):
            self._copies[key] = self._copies.get(key, 0) + 1
        else:  # the engine reported less than we claimed, so the copies counted so far were none
            self._copies.pop(key, None)

    def _rename(self, shard: dict[Key, BlockHash], key: Key, block_hash: BlockHash) -> BlockHash:
        """The name means another block now; returns the block that has lost it, which nothing could
        remove."""
        self._copies.pop(key, None)
        known, shard[key] = shard[key], block_hash
        return known

    def _drop_copy(self, key: Key) -> bool:
        copies = self._copies.get(key, 0)
        if copies > 1:
            self._copies[key] = copies - 1
        elif copies:
            del self._copies[key]
        return copies > 0
