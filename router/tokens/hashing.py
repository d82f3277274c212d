"""Block hashes for every hash space of a model, made in slices so that the event loop goes on.

Prompts repeat each other's beginnings: a segment that was hashed behind the same blocks before is looked up.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable

from xxhash import xxh3_128_intdigest

from indexer.blocks import TOKEN_BYTES, BlockHash, HashSpace, Unit, chain_block_hashes, root_seed
from router.core.catalogue import Resolution
from router.tokens.base import TokenHost
from router.tokens.limits import (
    BLOCK_MICROSECONDS,
    BLOCKS_PER_SEGMENT,
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


def root_seeds(host: TokenHost, parsed: ParsedBody, resolution: Resolution, unit: Unit) -> list[RootSeed]:
    """Every hash space of the model, with the seed that the first block of this prompt has there."""
    return [
        (
            space,
            root_seed(space.base_model, adapter=resolution.adapter, cache_salt=parsed.cache_salt, unit=unit),
        )
        for space in host.hash_spaces(resolution.model)
    ]


async def chain_hashes(
    packed: bytes, seeds: Iterable[RootSeed], pace: Pace
) -> dict[HashSpace, list[BlockHash]]:
    """The chain of complete blocks of `packed` in each hash space, from the root seed given for it."""
    return {
        space: await _chain_in_slices(packed, space.block_tokens * TOKEN_BYTES, seed, pace)
        for space, seed in seeds
    }


async def _chain_in_slices(packed: bytes, block_bytes: int, seed: BlockHash, pace: Pace) -> list[BlockHash]:
    view = memoryview(packed)
    slice_bytes, segment_bytes = BLOCKS_PER_SLICE * block_bytes, BLOCKS_PER_SEGMENT * block_bytes
    hashes: list[BlockHash] = []
    for start in range(0, len(packed), slice_bytes):
        part = view[start : start + slice_bytes]
        await pace.spend(len(part) // block_bytes * BLOCK_MICROSECONDS)
        for cut in range(0, len(part), segment_bytes):
            hashes += _segments.hashes(
                part[cut : cut + segment_bytes], block_bytes, hashes[-1] if hashes else seed
            )
    return hashes


class _Segments:
    """The hashes of BLOCKS_PER_SEGMENT blocks by their content and the hash before them; the least recently
    used go first. Equal digests of 128 bits are taken for equal content."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[int, int, BlockHash], list[BlockHash]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def hashes(self, segment: memoryview, block_bytes: int, seed: BlockHash) -> list[BlockHash]:
        if len(segment) < block_bytes * BLOCKS_PER_SEGMENT:
            return chain_block_hashes(segment, block_bytes, seed)
        key = (xxh3_128_intdigest(segment), block_bytes, seed)
        known = self._known
        hashes = known.get(key)
        if hashes is None:
            hashes = known[key] = chain_block_hashes(segment, block_bytes, seed)
            if len(known) > SEGMENTS_KEPT:
                known.popitem(last=False)
        else:
            known.move_to_end(key)
        return hashes


_segments = _Segments()
