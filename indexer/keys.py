"""What one worker holds in one tier: its engine's names of blocks -> our hashes, kept in step with the index.

Engines name blocks by hashes of their own, which later events use as parents and in removals. They are
reduced to keys of HASH_BITS bits, whatever their kind. A map belongs to one worker: engines with random
seeds never agree on names, models and adapters of different paths give equal names to different blocks, and
a router keeps most blocks on one worker anyway. So an entry goes exactly when its worker lets it go, and a
worker goes with its map.

vLLM does not merge equal blocks: it stores a block again when it computed it again, and removes it once per
copy. Copies beyond the first are counted in a map of exceptions. SGLang's trees hold a block once.

Memory of a block of one worker, index included: two dict entries of 27 to 54 bytes (as the dicts fill), two
integers of 32, and what `runs` says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from indexer.blocks import HASH_MASK, BlockHash
from indexer.events import EngineHash
from indexer.limits import KEY_SHARDS, WITHDRAWN_BLOCKS
from indexer.radix import RadixIndex, Slot, compacted
from indexer.runs import KEY_SHARD_SHIFT, Key, Runs, Tally


def key_of(engine_hash: EngineHash) -> Key:
    """The end of the hash, as engines do it that shorten their digests; signed integers bit for bit."""
    if isinstance(engine_hash, int):
        return engine_hash & HASH_MASK
    return int.from_bytes(engine_hash[-8:], "big") & HASH_MASK


class Garbage(NamedTuple):
    """A shard of what was forgotten: to let go of it gives its memory back, in about 2 ms at the most."""

    names: dict[Key, BlockHash]
    runs: dict[Key, list[int | None]]
    branches: dict[Key, int]


class KeyMapCopy(NamedTuple):
    """What a key map held at one moment."""

    names: list[dict[Key, BlockHash]]
    runs: list[list[int | None]]
    copies: dict[Key, int]
    unclaimed: frozenset[BlockHash]

    def ordered(self) -> Iterator[tuple[Key | None, list[Key], list[BlockHash]]]:
        """Each block once, in runs: the block before, keys, hashes. Uses the copy up."""
        for parent, *listed in self.runs:
            keys: list[Key] = []
            hashes: list[BlockHash] = []
            for key in listed:
                assert key is not None
                block_hash = self.names[key >> KEY_SHARD_SHIFT].pop(key, None)
                if block_hash is not None and block_hash not in self.unclaimed:
                    keys.append(key)
                    hashes.append(block_hash)
            if keys:
                yield parent, keys, hashes


class KeyMap:
    """The blocks of one slot in one index. What it holds is counted in `tally` too."""

    def __init__(
        self, index: RadixIndex, slot: Slot, tally: Tally | None = None, *, keeps_copies: bool = True
    ) -> None:
        self._index = index
        self._slot = slot
        self._keeps_copies = keeps_copies
        self._tally = Tally() if tally is None else tally
        self._num_keys = 0
        self._compact_at = 0
        self._shards: list[dict[Key, BlockHash]] = [{} for _ in range(KEY_SHARDS)]
        self._copies: dict[Key, int] = {}  # beyond the first
        self._withdrawn: set[BlockHash] | None = set()  # None: too many to be told
        self._runs = Runs(self.holds, self._tally)

    def block_hash(self, key: Key) -> BlockHash | None:
        """Our hash of the block that the engine calls `key`; None when it is not held."""
        return self._shards[key >> KEY_SHARD_SHIFT].get(key)

    def holds(self, key: Key) -> bool:
        return key in self._shards[key >> KEY_SHARD_SHIFT]

    def store(self, keys: Sequence[Key], hashes: Sequence[BlockHash], parent: Key | None = None) -> int:
        """A copy of each block became resident, the first behind `parent`, the others behind each other;
        returns how many were not held before."""
        shards = self._shards
        renamed: list[BlockHash] = []
        repeated: list[Key] = []
        for key, block_hash in zip(keys, hashes, strict=True):
            shard = shards[key >> KEY_SHARD_SHIFT]
            if key not in shard:
                shard[key] = block_hash
                continue
            repeated.append(key)
            if shard[key] == block_hash:
                self._add_copy(key, block_hash)
            else:
                renamed.append(self._rename(shard, key, block_hash))
        self._chain(keys, repeated, parent)
        num_new = self._index.store(self._slot, hashes)
        return num_new - self._index.truncate(self._slot, renamed)

    def remove(self, key: Key) -> bool:
        """One copy of the block is gone; True when it was the last and the worker no longer holds it."""
        shard = self._shards[key >> KEY_SHARD_SHIFT]
        block_hash = shard.get(key)
        if block_hash is None or self._drop_copy(key):
            return False
        del shard[key]
        self._runs.discard(key)
        self._count_keys(-1)
        return self._give_up(block_hash)

    def withdraw(self, hashes: Sequence[BlockHash]) -> int:
        """The engine reported that it does not hold these: they keep their names and are claimed no longer.
        Returns how many were."""
        dropped = [each for each in hashes if self._index.remove(self._slot, each)]
        if self._withdrawn is not None:
            self._withdrawn.update(dropped)
            if len(self._withdrawn) > WITHDRAWN_BLOCKS:
                self._withdrawn = self._unclaimed()
            if len(self._withdrawn) > WITHDRAWN_BLOCKS:
                self._withdrawn = None
        return len(dropped)

    def _unclaimed(self) -> set[BlockHash]:
        """Those that were withdrawn and not stored again since."""
        return {each for each in self._withdrawn or () if not self._index.holds(self._slot, each)}

    def remove_all(self, keys: Sequence[Key]) -> int:
        """`remove` for each of them, counted once; returns how many blocks the worker no longer holds."""
        shards, copies, discard = self._shards, self._copies, self._runs.discard
        gone: list[BlockHash] = []
        for key in keys:
            if key in copies and self._drop_copy(key):
                continue
            block_hash = shards[key >> KEY_SHARD_SHIFT].pop(key, None)
            if block_hash is not None:
                discard(key)
                gone.append(block_hash)
        self._count_keys(-len(gone))
        return self._index.truncate(self._slot, gone)

    def drop_oldest(self, max_blocks: int) -> int:
        """Give up some ends of what was stored longest ago; returns how many blocks went."""
        num_dropped = self._runs.drop_oldest(max_blocks, self._drop)
        self._count_keys(-num_dropped)
        return num_dropped

    def _drop(self, key: Key) -> None:
        self._forget_copies(key)
        self._give_up(self._shards[key >> KEY_SHARD_SHIFT].pop(key))

    def _give_up(self, block_hash: BlockHash) -> bool:
        """The claim on a block that has lost its name; False when there was none."""
        was_claimed = self._index.remove(self._slot, block_hash)
        if not was_claimed and self._withdrawn:
            self._withdrawn.discard(block_hash)
        return was_claimed

    def copied(self) -> KeyMapCopy:
        """What it claims now, for a snapshot: about 30 ms a million blocks. Nothing when more was withdrawn
        than is remembered."""
        if self._withdrawn is None:
            return KeyMapCopy([], [], {}, frozenset())
        self._withdrawn = self._unclaimed()
        names = [shard.copy() for shard in self._shards]
        return KeyMapCopy(names, self._runs.copied(), dict(self._copies), frozenset(self._withdrawn))

    def restore(self, keys: Sequence[Key], hashes: Sequence[BlockHash], parent: Key | None) -> None:
        """As `store`, but blocks that are held already get no copy."""
        fresh = [position for position, key in enumerate(keys) if not self.holds(key)]
        self.store([keys[position] for position in fresh], [hashes[position] for position in fresh], parent)

    def restore_copies(self, key: Key, copies: int) -> None:
        """So many beyond the first."""
        if self.holds(key) and copies > 0 and key not in self._copies:
            self._copies[key] = copies
            self._tally.num_copies += 1

    def compact(self) -> None:
        """Look at the next shard, as RadixIndex.compact."""
        number = self._compact_at
        self._compact_at = (number + 1) % KEY_SHARDS
        self._shards[number] = compacted(self._shards[number])

    def clear(self) -> list[Garbage]:
        """Forget everything; returns what was held, for its memory to be given back in slices. Until then
        the tally has it."""
        shards, self._shards = self._shards, [{} for _ in range(KEY_SHARDS)]
        self._tally.num_copies -= len(self._copies)
        self._copies = {}
        self._num_keys = 0
        self._withdrawn = set()
        self._index.drop_slot(self._slot)
        runs = self._runs.clear()
        shards.append({})
        return [Garbage(names, *rest) for names, rest in zip(shards, runs, strict=True) if names or rest[0]]

    def __len__(self) -> int:
        return self._num_keys

    def check(self) -> None:
        """Assert every invariant; O(size)."""
        assert self._num_keys == sum(map(len, self._shards)), "every name is counted"
        self._runs.check()
        for key, copies in self._copies.items():
            assert copies > 0, "copies are counted beyond the first"
            assert self.block_hash(key) is not None, "copies are of blocks that are held"
        held = {block_hash for shard in self._shards for block_hash in shard.values()}
        assert self._index.num_blocks(self._slot) <= len(held), (
            "what the index claims is held under some name"
        )
        for number, shard in enumerate(self._shards):
            assert all(key >> KEY_SHARD_SHIFT == number for key in shard), "a key is in its shard"

    def _count_keys(self, change: int) -> None:
        self._num_keys += change
        self._tally.num_keys += change

    def _chain(self, keys: Sequence[Key], repeated: Sequence[Key], parent: Key | None) -> None:
        """Note what is new of these blocks, and what it goes on from."""
        if repeated:
            keys, all_keys = _without(keys, repeated), keys
            if keys and (position := all_keys.index(keys[0])):
                parent = all_keys[position - 1]
        if keys:
            self._runs.add(parent, keys)
            self._count_keys(len(keys))

    def _add_copy(self, key: Key, block_hash: BlockHash) -> None:
        if not self._keeps_copies:
            return
        if not self._index.holds(self._slot, block_hash):
            self._forget_copies(key)  # the engine reported less than we claimed: those counted were none
        elif key in self._copies:
            self._copies[key] += 1
        else:
            self._copies[key] = 1
            self._tally.num_copies += 1

    def _rename(self, shard: dict[Key, BlockHash], key: Key, block_hash: BlockHash) -> BlockHash:
        """The name means another block now; returns the block that has lost it, which nothing could
        remove."""
        self._forget_copies(key)
        known, shard[key] = shard[key], block_hash
        return known

    def _drop_copy(self, key: Key) -> bool:
        copies = self._copies.get(key, 0)
        if copies > 1:
            self._copies[key] = copies - 1
        elif copies:
            self._forget_copies(key)
        return copies > 0

    def _forget_copies(self, key: Key) -> None:
        if self._copies.pop(key, None) is not None:
            self._tally.num_copies -= 1


def _without(keys: Sequence[Key], repeated: Sequence[Key]) -> list[Key]:
    """`repeated` is a part of `keys`, in their order; what is left is without it."""
    rest = iter(repeated)
    known = next(rest, None)
    left = []
    for key in keys:
        if key == known:
            known = next(rest, None)
        else:
            left.append(key)
    return left
