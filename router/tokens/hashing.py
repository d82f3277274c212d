"""Block hashes for every hash space of a model, made in slices so that the event loop goes on.

Prompts repeat each other's beginnings: a run of blocks that was hashed behind the same blocks before is
looked up. Token ids are cut into the workers' blocks, texts into those of `indexer.byte_blocks`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from functools import lru_cache
from typing import Generic, TypeVar

from xxhash import xxh3_128_intdigest

from indexer.blocks import HASHINGS, TOKEN_BYTES, BlockHash, HashSpace, Unit
from indexer.byte_blocks import BLOCKS_PER_DOUBLING, COVERED, chain_byte_blocks, depth_within
from router.core.catalogue import Resolution
from router.tokens.base import TokenHost
from router.tokens.limits import (
    BEGINNINGS_KEPT,
    BLOCK_MICROSECONDS,
    BLOCKS_PER_BEGINNING,
    BLOCKS_PER_SEGMENT,
    BYTE_MICROSECONDS,
    ROOT_SEEDS_KEPT,
    SEGMENTS_KEPT,
    SLICE_MICROSECONDS,
)
from router.wire.openai import ParsedBody

BLOCKS_PER_SLICE = int(SLICE_MICROSECONDS / BLOCK_MICROSECONDS) // BLOCKS_PER_SEGMENT * BLOCKS_PER_SEGMENT


class Pace:
    """Counts estimated work; after each slice of it the other tasks of the loop get a turn."""

    def __init__(self) -> None:
        self._spent = 0.0

    async def spend(self, microseconds: float) -> None:
        """Account for work about to be done, less than a slice. Returns at once while the slice lasts."""
        self._spent += microseconds
        if self._spent > SLICE_MICROSECONDS:
            self._spent = microseconds
            await asyncio.sleep(0)


RootSeed = tuple[HashSpace, BlockHash]


@lru_cache(ROOT_SEEDS_KEPT)
def _root_seed(hashing: str, base_model: str, adapter: str, cache_salt: str, unit: Unit) -> BlockHash:
    return HASHINGS[hashing].root(base_model, adapter=adapter, cache_salt=cache_salt, unit=unit)


def root_seeds(host: TokenHost, parsed: ParsedBody, resolution: Resolution, unit: Unit) -> list[RootSeed]:
    """Every hash space of the model, with the seed that the first block of this prompt has there."""
    return [
        (
            space,
            _root_seed(space.hashing, space.base_model, resolution.adapter, parsed.cache_salt, unit),
        )
        for space in host.hash_spaces(resolution.model)
    ]


async def chain_hashes(
    packed: bytes, seeds: Iterable[RootSeed], pace: Pace
) -> dict[HashSpace, list[BlockHash]]:
    """The chain of complete blocks of `packed` in each hash space, from the root seed given for it."""
    return {space: await _chain_in_slices(packed, space, root, pace) for space, root in seeds}


async def _chain_in_slices(packed: bytes, space: HashSpace, root: BlockHash, pace: Pace) -> list[BlockHash]:
    view = memoryview(packed)
    block_bytes, lookahead_bytes = space.block_tokens * TOKEN_BYTES, space.lookahead_tokens * TOKEN_BYTES
    slice_bytes, segment_bytes = BLOCKS_PER_SLICE * block_bytes, BLOCKS_PER_SEGMENT * block_bytes
    hashes: list[BlockHash] = []
    for start in range(0, len(packed), slice_bytes):
        part = view[start : start + slice_bytes + lookahead_bytes]
        await pace.spend(len(part) // block_bytes * BLOCK_MICROSECONDS)
        for cut in range(0, min(len(part), slice_bytes), segment_bytes):
            segment = part[cut : cut + segment_bytes + lookahead_bytes]
            is_whole = len(segment) == segment_bytes + lookahead_bytes
            chain = _segments.hashes if is_whole else _chain
            hashes += chain(segment, space, (root, hashes[-1] if hashes else None))
    return hashes


def _chain(
    segment: memoryview, space: HashSpace, behind: tuple[BlockHash, BlockHash | None]
) -> list[BlockHash]:
    """`behind`: the root and, unless they are the first, the hash before these blocks."""
    root, parent = behind
    block_bytes, lookahead_bytes = space.block_tokens * TOKEN_BYTES, space.lookahead_tokens * TOKEN_BYTES
    return HASHINGS[space.hashing].chain(segment, block_bytes, root, parent, (), lookahead_bytes)


async def chain_byte_hashes(
    text: memoryview, seeds: Iterable[RootSeed], pace: Pace
) -> dict[HashSpace, list[BlockHash]]:
    """The chain of a text in each hash space, from the root seed given for it, in blocks that widen."""
    return {
        space: await _chain_bytes(text, space.block_tokens * TOKEN_BYTES, seed, pace) for space, seed in seeds
    }


async def _chain_bytes(text: memoryview, block_bytes: int, seed: BlockHash, pace: Pace) -> list[BlockHash]:
    """A beginning that repeats, up to the last doubling of its length, is looked up whole."""
    covered = COVERED[Unit.BYTES]
    num_blocks = depth_within(len(text) // block_bytes, Unit.BYTES)
    first = min(num_blocks - num_blocks % BLOCKS_PER_DOUBLING, BLOCKS_PER_BEGINNING)
    hashes = _beginnings.hashes(text[: covered[first] * block_bytes], block_bytes, seed).copy()
    for depth in range(BLOCKS_PER_BEGINNING, num_blocks):
        end = covered[depth + 1] * block_bytes
        await pace.spend((end - covered[depth] * block_bytes) * BYTE_MICROSECONDS)
        hashes += chain_byte_blocks(text[:end], block_bytes, hashes[-1], depth)
    return hashes + chain_byte_blocks(text, block_bytes, hashes[-1] if hashes else seed, len(hashes))


_Cut = TypeVar("_Cut", bound=Hashable)
_Behind = TypeVar("_Behind", bound=Hashable)


class _Segments(Generic[_Cut, _Behind]):
    """Hashes by the content of a run of blocks and the hash before it; the least recently used go first.

    `chain` takes that content, how it is cut, and what it is behind. Equal digests of 128 bits are taken for
    equal content.
    """

    def __init__(self, capacity: int, chain: Callable[[memoryview, _Cut, _Behind], list[BlockHash]]) -> None:
        self._capacity = capacity
        self._chain = chain
        self._known: OrderedDict[tuple[int, _Cut, _Behind], list[BlockHash]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def hashes(self, segment: memoryview, cut: _Cut, behind: _Behind) -> list[BlockHash]:
        """Not to be changed: they are kept."""
        key = (xxh3_128_intdigest(segment), cut, behind)
        known = self._known
        hashes = known.get(key)
        if hashes is None:
            hashes = known[key] = self._chain(segment, cut, behind)
            if len(known) > self._capacity:
                known.popitem(last=False)
        else:
            known.move_to_end(key)
        return hashes


_segments = _Segments(SEGMENTS_KEPT, _chain)
_beginnings = _Segments(BEGINNINGS_KEPT, chain_byte_blocks)
