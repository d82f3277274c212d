"""Chains made in slices equal chains made at once, and small ones never yield."""

import asyncio

import pytest

from indexer.blocks import HashSpace, chain_block_hashes
from router.tokens import hashing
from router.tokens.hashing import BLOCKS_PER_SLICE, Pace, chain_hashes
from router.tokens.limits import BLOCK_MICROSECONDS, BLOCKS_PER_SEGMENT, SLICE_MICROSECONDS


class Turns:
    """Counts how often another task of the loop gets a turn."""

    def __init__(self):
        self.num_turns = 0

    async def __aenter__(self):
        self._task = asyncio.ensure_future(self._count())
        await asyncio.sleep(0)
        self.num_turns = 0
        return self

    async def __aexit__(self, *exc):
        self._task.cancel()

    async def _count(self):
        while True:
            self.num_turns += 1
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    "num_blocks", [0, 1, 7, BLOCKS_PER_SLICE, BLOCKS_PER_SLICE + 1, 3 * BLOCKS_PER_SLICE + 5]
)
@pytest.mark.parametrize("tail", [0, 3])
async def test_slices_change_nothing(num_blocks, tail):
    packed = bytes(i * 31 % 251 for i in range(num_blocks * 16 + tail))
    space = HashSpace("m", 4)
    chains = await chain_hashes(packed, [(space, 7)], Pace())
    assert chains == {space: chain_block_hashes(packed, 16, 7)}


async def test_one_chain_for_each_space():
    packed = bytes(range(64))
    spaces = [HashSpace("m", 4), HashSpace("m", 8), HashSpace("other", 4)]
    chains = await chain_hashes(packed, [(space, seed) for seed, space in enumerate(spaces)], Pace())
    assert [len(chains[space]) for space in spaces] == [4, 2, 4]
    assert len({chain[0] for chain in chains.values()}) == 3


async def test_small_prompts_do_not_yield():
    async with Turns() as turns:
        await chain_hashes(bytes(512 * 64), [(HashSpace("m", 16), 0), (HashSpace("m", 32), 0)], Pace())
        assert turns.num_turns == 0


async def test_large_prompts_yield_once_for_each_slice():
    async with Turns() as turns:
        await chain_hashes(bytes(4 * BLOCKS_PER_SLICE * 16), [(HashSpace("m", 4), 0)], Pace())
        assert turns.num_turns == 3


async def test_many_small_chains_share_one_pace():
    blocks = int(0.6 * SLICE_MICROSECONDS / BLOCK_MICROSECONDS)
    async with Turns() as turns:
        seeds = [(HashSpace(f"m{i}", 4), 0) for i in range(3)]
        await chain_hashes(bytes(blocks * 16), seeds, Pace())
        assert turns.num_turns == 2


async def test_repeated_segments_are_known_by_content_and_by_what_stands_before_them():
    segment_bytes = BLOCKS_PER_SEGMENT * 16
    one, other = bytes(segment_bytes), bytes([1]) * segment_bytes
    space = HashSpace("m", 4)
    for packed in (one + one, one + other, other + one, one + one + b"tail of 16 bytes"):
        for seed in (7, 8):
            chains = await chain_hashes(packed, [(space, seed)], Pace())
            assert chains == {space: chain_block_hashes(packed, 16, seed)}


async def test_segments_are_forgotten(monkeypatch):
    segments = hashing._Segments()
    monkeypatch.setattr(hashing, "SEGMENTS_KEPT", 2)
    for byte in range(4):
        packed = bytes([byte]) * BLOCKS_PER_SEGMENT * 16
        assert segments.hashes(memoryview(packed), 16, 7) == chain_block_hashes(packed, 16, 7)
    assert len(segments) == 2
