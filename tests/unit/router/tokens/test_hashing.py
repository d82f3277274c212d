"""Chains made in slices equal chains made at once, and small ones never yield."""

import asyncio

import pytest

from indexer.blocks import HASHINGS, HashSpace, Unit, chain_block_hashes
from indexer.byte_blocks import COVERED, chain_byte_blocks
from router.tokens import hashing
from router.tokens.hashing import BLOCKS_PER_SLICE, Pace, chain_byte_hashes, chain_hashes
from router.tokens.limits import (
    BLOCK_MICROSECONDS,
    BLOCKS_PER_BEGINNING,
    BLOCKS_PER_SEGMENT,
    BYTE_MICROSECONDS,
    SLICE_MICROSECONDS,
)


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


@pytest.mark.parametrize("name", HASHINGS)
@pytest.mark.parametrize("num_blocks", [0, 3, BLOCKS_PER_SEGMENT, 2 * BLOCKS_PER_SLICE + 5])
@pytest.mark.parametrize("more", [0, 1, 4])
async def test_slices_change_nothing_whatever_the_hashing_and_the_lookahead(name, num_blocks, more):
    packed = bytes(i * 31 % 251 for i in range((num_blocks * 4 + more) * 4))
    space = HashSpace("m", 4, 1, name)
    for _ in range(2):
        chains = await chain_hashes(packed, [(space, 7)], Pace())
        assert chains == {space: HASHINGS[name].chain(packed, 16, 7, None, (), 4)}
        assert len(chains[space]) == max(0, num_blocks * 4 + more - 1) // 4


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


async def test_segments_are_forgotten():
    segments = hashing._Segments(2, chain_block_hashes)
    for byte in range(4):
        packed = bytes([byte]) * BLOCKS_PER_SEGMENT * 16
        assert segments.hashes(memoryview(packed), 16, 7) == chain_block_hashes(packed, 16, 7)
    assert len(segments) == 2


# Texts


@pytest.mark.parametrize("depth", [0, 1, 15, 16, 31, 32, 33, 47, 48, 49, 80, BLOCKS_PER_BEGINNING])
@pytest.mark.parametrize("more", [0, 1, 3])
async def test_a_texts_chain_is_that_of_its_blocks_whatever_is_known_of_its_beginning(depth, more):
    num_bytes = COVERED[Unit.BYTES][depth] * 4 + more
    text = (bytes(i * 31 % 251 for i in range(251)) * (num_bytes // 251 + 1))[:num_bytes]
    space = HashSpace("m", 1)
    for seed in (7, 8, 7):
        chains = await chain_byte_hashes(memoryview(text), [(space, seed)], Pace())
        assert chains == {space: chain_byte_blocks(text, 4, seed)}
        assert len(chains[space]) == depth


async def test_what_is_known_of_a_beginning_is_not_changed_by_what_follows():
    beginning = bytes(32 * 4)
    for tail in (b"", b"one." * 2, b"another." * 5, b""):
        chains = await chain_byte_hashes(memoryview(beginning + tail), [(HashSpace("m", 1), 7)], Pace())
        assert chains[HashSpace("m", 1)] == chain_byte_blocks(beginning + tail, 4, 7)


async def test_huge_texts_yield():
    num_bytes = int(3.5 * SLICE_MICROSECONDS / BYTE_MICROSECONDS)
    text, space = bytes(num_bytes), HashSpace("m", 1)
    async with Turns() as turns:
        chains = await chain_byte_hashes(memoryview(text), [(space, 7)], Pace())
        assert turns.num_turns == 3
    assert chains == {space: chain_byte_blocks(text, 4, 7)}
