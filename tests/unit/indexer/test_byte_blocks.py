"""Blocks of byte prompts: where they are cut, and what their hashes stand for."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from indexer.blocks import HASH_MASK, Unit
from indexer.byte_blocks import COVERED, NARROW_BLOCKS, chain_byte_blocks, depth_within

ENDS = COVERED[Unit.BYTES]


def test_a_chain_is_hashed_block_by_block_each_seeded_by_the_one_before() -> None:
    text = bytes(i * 7 % 256 for i in range(3_000))
    expected, seed = [], 5
    for start, end in pairwise(ENDS):
        if end * 4 > len(text):
            break
        seed = xxh3_64_intdigest(text[start * 4 : end * 4], seed) & HASH_MASK
        expected.append(seed)
    assert chain_byte_blocks(text, 4, 5) == expected
    assert chain_byte_blocks(text, 4, expected[39], 40) == expected[40:]


@pytest.mark.parametrize(
    ("num_bytes", "num_hashes"), [(0, 0), (63, 0), (64, 1), (2 << 10, 32), (32 << 10, 96), (1 << 20, 176)]
)
def test_few_hashes_name_a_long_prompt(num_bytes: int, num_hashes: int) -> None:
    assert len(chain_byte_blocks(bytes(num_bytes), 64, 0)) == num_hashes


@given(st.integers(0, 1 << 40))
def test_where_two_prompts_part_is_known_to_within_a_sixteenth(num_shared: int) -> None:
    seen = ENDS[depth_within(num_shared, Unit.BYTES)]
    assert seen <= num_shared
    if num_shared < ENDS[-1]:
        assert num_shared - seen < max(1, num_shared / 16)
    if num_shared <= NARROW_BLOCKS:
        assert seen == num_shared


@given(st.integers(0, 1 << 40))
def test_of_tokens_every_block_has_a_hash(num_blocks: int) -> None:
    assert COVERED[Unit.TOKENS][depth_within(num_blocks, Unit.TOKENS)] == num_blocks


@given(st.binary(max_size=3_000), st.binary(max_size=200), st.binary(max_size=200))
def test_chains_agree_exactly_as_far_as_whole_blocks_do(shared: bytes, one: bytes, other: bytes) -> None:
    chains = [chain_byte_blocks(shared + end, 4, 0) for end in (one, other)]
    for depth, (left, right) in enumerate(zip(*chains, strict=False)):
        end = ENDS[depth + 1] * 4
        assert (left == right) == ((shared + one)[:end] == (shared + other)[:end])
