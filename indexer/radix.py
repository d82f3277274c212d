"""The radix index: which worker holds which prefix block, for one tier.

A block's hash is chained through everything before it, so it names its whole path and the tree needs no
nodes: a flat map from hash to a bitmask of holders is the tree. A walk along a prompt's hashes keeps the
workers that still hold every block so far.

Bit positions are lanes, not slots. A slot gets a lane when it first stores; dropping the slot retires the
lane, which no query can see from then on, and a sweep in slices takes its bits out of the map before the
lane is given to anyone else. So forgetting a worker costs nothing at once, and the slot can begin anew in
the same moment.

Memory: one dict entry (27 to 54 bytes, as the dict fills), 32 bytes for the hash, nothing for the bitmask of
a single holder (shared), 32 bytes for one of several holders. A dict in which blocks come and go leaves up to
108 bytes an entry behind its growth; `compact` brings it back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from sys import getsizeof
from typing import TypeVar

from indexer.blocks import HASH_BITS, BlockHash
from indexer.limits import INDEX_SHARDS, LOOSE_ENTRY_BYTES

Slot = int

_SHARD_SHIFT = HASH_BITS - (INDEX_SHARDS - 1).bit_length()
# The high bits choose the shard: a dict places its keys by the low ones, which must vary within a shard.

_ALIASES = 1 << 64 - HASH_BITS
# Hashes of other schemes have 64 bits. Each shard is listed once for every value of the bits beyond ours:
# that costs nothing, where masking them costs 10 ns a block.


@dataclass(frozen=True, slots=True)
class OverlapScores:
    """Leading prompt blocks per slot, by tier; slots without any are absent.

    `host` and `disk` count only what continues the device prefix, then the host prefix.
    """

    device: Mapping[Slot, int] = field(default_factory=dict)
    host: Mapping[Slot, int] = field(default_factory=dict)
    disk: Mapping[Slot, int] = field(default_factory=dict)


class RadixIndex:
    """Block hash -> bitmask of the lanes that hold it, sharded by hash."""

    def __init__(self) -> None:
        shards: list[dict[BlockHash, int]] = [{} for _ in range(INDEX_SHARDS)]
        self._shards = shards * _ALIASES
        self._bits: dict[Slot, int] = {}
        self._slots: dict[int, Slot] = {}
        self._counts: dict[Slot, int] = {}
        self._num_blocks = 0
        self._used_bits = 0
        self._compact_at = 0
        self._retired: dict[int, Slot] = {}
        self._sweeping = 0
        self._sweep_at = 0

    def store(self, slot: Slot, hashes: Sequence[BlockHash]) -> int:
        """Note that `slot` holds these blocks; returns how many it did not hold before. About 0.1 us a
        block."""
        bit = self._bits.get(slot) or self._open_lane(slot)
        shards = self._shards
        num_first = num_joined = 0
        for block_hash in hashes:
            shard = shards[block_hash >> _SHARD_SHIFT]
            holders = shard.get(block_hash)
            if holders is None:
                shard[block_hash] = bit
                num_first += 1
            elif not holders & bit:
                shard[block_hash] = holders | bit
                num_joined += 1
        self._num_blocks += num_first
        self._counts[slot] += num_first + num_joined
        return num_first + num_joined

    def remove(self, slot: Slot, block_hash: BlockHash) -> bool:
        """Note that `slot` no longer holds this block; False when it did not."""
        shard = self._shards[block_hash >> _SHARD_SHIFT]
        bit = self._bits.get(slot, 0)
        holders = shard.get(block_hash, 0)
        if not holders & bit:
            return False
        if holders == bit:
            del shard[block_hash]
            self._num_blocks -= 1
        else:
            shard[block_hash] = holders ^ bit
        self._counts[slot] -= 1
        return True

    def holds(self, slot: Slot, block_hash: BlockHash) -> bool:
        """Whether `slot` holds this block."""
        holders = self._shards[block_hash >> _SHARD_SHIFT].get(block_hash, 0)
        return bool(holders & self._bits.get(slot, 0))

    def match(self, hashes: Sequence[BlockHash], candidates: int) -> dict[Slot, int]:
        """Leading blocks of a prompt that each candidate holds; candidates with none are absent.

        `candidates` is a bitmask of slots. The walk ends when none is left.
        """
        depths: dict[Slot, int] = {}
        alive = self._lanes_of(candidates)
        if not alive:
            return depths
        shards = self._shards
        depth = 0
        for block_hash in hashes:
            holders = alive & shards[block_hash >> _SHARD_SHIFT].get(block_hash, 0)
            if holders != alive:
                self._note_depth(depths, alive ^ holders, depth)
                alive = holders
                if not alive:
                    break
            depth += 1
        self._note_depth(depths, alive, depth)
        return depths

    def extend(
        self, hashes: Sequence[BlockHash], candidates: int, depths: Mapping[Slot, int]
    ) -> dict[Slot, int]:
        """How many blocks each candidate holds here that continue its prefix of `depths` blocks elsewhere.

        Candidates absent from `depths` start at the prompt's first block; those that add nothing are absent.
        One walk for all: a candidate joins it where its prefix ends.
        """
        joining = self._lanes_by_start(candidates, depths, len(hashes))
        extensions: dict[Slot, int] = {}
        starts: dict[int, int] = {}
        shards = self._shards
        alive = 0
        for position in range(min(joining, default=len(hashes)), len(hashes)):
            if lanes := joining.pop(position, 0):
                alive |= lanes
                starts |= dict.fromkeys(_bits_of(lanes), position)
            if not alive:
                if not joining:
                    break
                continue
            block_hash = hashes[position]
            holders = alive & shards[block_hash >> _SHARD_SHIFT].get(block_hash, 0)
            if holders != alive:
                self._note_lengths(extensions, alive ^ holders, starts, position)
                alive = holders
        self._note_lengths(extensions, alive, starts, len(hashes))
        return extensions

    def truncate(self, slot: Slot, hashes: Sequence[BlockHash]) -> int:
        """Drop the slot's claim on these blocks; returns how many it held."""
        return sum(self.remove(slot, block_hash) for block_hash in hashes)

    def num_blocks(self, slot: Slot) -> int:
        """Blocks that `slot` holds."""
        return self._counts.get(slot, 0)

    def drop_slot(self, slot: Slot) -> None:
        """Forget all that `slot` holds: at once for queries, in memory by sweeping. It may store again at
        once."""
        bit = self._bits.pop(slot, 0)
        if not bit:
            return
        del self._slots[bit]
        if self._counts.pop(slot):
            self._retired[bit] = slot
        else:
            self._used_bits ^= bit

    def sweep(self, max_blocks: int) -> bool:
        """Look at about `max_blocks` blocks (at least one shard) for retired lanes; True when none are left.

        About 0.05 us a block. A lane that is retired during a pass waits for the next one.
        """
        if not self._retired:
            return True
        if not self._sweeping:
            self._sweeping = sum(self._retired)
            self._sweep_at = 0
        while max_blocks > 0 and self._sweep_at < INDEX_SHARDS:
            max_blocks -= len(self._shards[self._sweep_at]) + 1
            self._sweep_shard(self._sweep_at)
            self._sweep_at += 1
        if self._sweep_at == INDEX_SHARDS:
            self._end_pass()
        return not self._retired

    def is_free(self, slot: Slot) -> bool:
        """Whether nothing of `slot` is left, in use or waiting to be swept."""
        return slot not in self._bits and slot not in self._retired.values()

    def compact(self) -> None:
        """Look at the next shard: where blocks came and went, its dict may have grown far beyond what it
        holds."""
        number = self._compact_at
        self._compact_at = (number + 1) % INDEX_SHARDS
        self._replace(number, compacted(self._shards[number]))

    def holders(self, number: int) -> Iterator[tuple[BlockHash, list[Slot]]]:
        """The blocks of one shard (below INDEX_SHARDS) that somebody holds, with their holders, in the order
        of their hashes."""
        live = sum(self._slots)
        for block_hash, lanes in sorted(self._shards[number].items()):
            if lanes & live:
                yield block_hash, [self._slots[bit] for bit in _bits_of(lanes & live)]

    def __len__(self) -> int:
        """Distinct blocks, those waiting to be swept included."""
        return self._num_blocks

    def check(self) -> None:
        """Assert every invariant; O(size)."""
        counts = dict.fromkeys(self._bits, 0)
        for number, shard in enumerate(self._shards[:INDEX_SHARDS]):
            for block_hash, holders in shard.items():
                assert (block_hash >> _SHARD_SHIFT) % INDEX_SHARDS == number, (
                    "a block is in the shard of its hash"
                )
                assert holders, "a block without holders has no entry"
                assert not holders & ~self._used_bits, "every bit belongs to a lane in use"
                for slot, bit in self._bits.items():
                    counts[slot] += bool(holders & bit)
        assert self._num_blocks == sum(map(len, self._shards[:INDEX_SHARDS])), "every entry is counted"
        assert counts == self._counts, "the count of each slot is the number of its bits"
        assert self._slots == {bit: slot for slot, bit in self._bits.items()}, "lanes name their slot"
        assert not self._slots.keys() & self._retired.keys(), "a lane is live or retired"
        assert self._used_bits == sum(self._slots) + sum(self._retired), "lanes in use are live or retired"

    def _open_lane(self, slot: Slot) -> int:
        bit = ~self._used_bits & (self._used_bits + 1)  # the lowest zero bit
        self._used_bits |= bit
        self._bits[slot] = bit
        self._slots[bit] = slot
        self._counts[slot] = 0
        return bit

    def _lanes_of(self, candidates: int) -> int:
        lanes = 0
        for slot, bit in self._bits.items():
            if candidates >> slot & 1:
                lanes |= bit
        return lanes

    def _lanes_by_start(self, candidates: int, depths: Mapping[Slot, int], end: int) -> dict[int, int]:
        """The lanes of candidates that hold anything, by where in the prompt they begin to be of interest."""
        joining: dict[int, int] = {}
        for slot, count in self._counts.items():
            if count and candidates >> slot & 1 and (start := depths.get(slot, 0)) < end:
                joining[start] = joining.get(start, 0) | self._bits[slot]
        return joining

    def _note_depth(self, depths: dict[Slot, int], lanes: int, depth: int) -> None:
        if depth:
            for bit in _bits_of(lanes):
                depths[self._slots[bit]] = depth

    def _note_lengths(
        self, lengths: dict[Slot, int], lanes: int, starts: Mapping[int, int], end: int
    ) -> None:
        for bit in _bits_of(lanes):
            if end > starts[bit]:
                lengths[self._slots[bit]] = end - starts[bit]

    def _sweep_shard(self, number: int) -> None:
        shard, dead = self._shards[number], self._sweeping
        doomed = [block_hash for block_hash, holders in shard.items() if holders & dead]
        for block_hash in doomed:
            rest = shard[block_hash] & ~dead
            if rest:
                shard[block_hash] = rest
            else:
                del shard[block_hash]
                self._num_blocks -= 1
        self._replace(number, compacted(shard))

    def _replace(self, number: int, shard: dict[BlockHash, int]) -> None:
        if shard is not self._shards[number]:
            self._shards[number::INDEX_SHARDS] = [shard] * _ALIASES

    def _end_pass(self) -> None:
        for bit in [bit for bit in self._retired if bit & self._sweeping]:
            del self._retired[bit]
        self._used_bits &= ~self._sweeping
        self._sweeping = 0


_Values = TypeVar("_Values")


def compacted(entries: dict[int, _Values]) -> dict[int, _Values]:
    """The same entries in a dict of their size. A dict gives no memory back by deleting, and grows to four
    times what it holds when entries come and go; a copy is compact."""
    return dict(entries) if getsizeof(entries) > LOOSE_ENTRY_BYTES * (len(entries) + 8) else entries


def _bits_of(lanes: int) -> Iterator[int]:
    while lanes:
        bit = lanes & -lanes
        yield bit
        lanes ^= bit
