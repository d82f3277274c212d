"""Blocks of prompts that are measured in bytes: they widen along the prompt.

They are compared with our own earlier decisions only, so they need not be the engine's. The first
NARROW_BLOCKS are as long as the workers' blocks; from there on each doubling of the length is cut into
BLOCKS_PER_DOUBLING. Chains of one hash space are cut in the same places, so they stay comparable, and
wherever two prompts part, that is known to within a sixteenth of what they share. 32 KiB in blocks of 64
bytes make 96 hashes instead of 512, and a MiB makes 176.

`COVERED` converts: a chain's depth is counted in hashes, everything that is compared or added up in blocks of
the workers.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise

from xxhash import xxh3_64_intdigest

from indexer.blocks import HASH_MASK, BlockHash, Unit
from indexer.limits import BLOCK_SIZES_CUT, BYTE_DOUBLINGS

NARROW_BLOCKS = 32
BLOCKS_PER_DOUBLING = 16

_WIDTHS = [1] * NARROW_BLOCKS + [
    2**doubling for doubling in range(1, BYTE_DOUBLINGS + 1) for _ in range(BLOCKS_PER_DOUBLING)
]

COVERED: Mapping[Unit, Sequence[int]] = {
    Unit.TOKENS: range(sys.maxsize),
    Unit.BYTES: list(accumulate(_WIDTHS, initial=0)),
}
"""COVERED[unit][depth]: how many of the workers' blocks the first `depth` hashes of a chain cover."""


def depth_within(num_blocks: int, unit: Unit) -> int:
    """How many hashes of a chain fit into so many of the workers' blocks."""
    if unit is Unit.TOKENS:
        return num_blocks
    return bisect_right(COVERED[unit], num_blocks) - 1


def chain_byte_blocks(
    text: bytes | memoryview, block_bytes: int, seed: BlockHash, first: int = 0
) -> list[BlockHash]:
    """Hashes of the complete blocks of a text from the one numbered `first` on; a partial tail has none.

    `block_bytes`: of the narrowest block. `seed`: the hash before the first. About 0.15 us each.
    """
    cuts = _cuts(block_bytes)[first : depth_within(len(text) // block_bytes, Unit.BYTES)]
    blocks = map(memoryview(text).__getitem__, cuts)
    return [seed := xxh3_64_intdigest(block, seed) & HASH_MASK for block in blocks]


@lru_cache(BLOCK_SIZES_CUT)
def _cuts(block_bytes: int) -> list[slice]:
    """Made once: three times as quick as making them for every prompt."""
    return [slice(start * block_bytes, end * block_bytes) for start, end in pairwise(COVERED[Unit.BYTES])]
