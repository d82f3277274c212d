"""The chain of hashes: what makes two blocks equal, and what keeps them apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.blocks import HASH_MASK, TOKEN_BYTES, Unit, chain_block_hashes, pack_tokens, root_seed

tokens = st.lists(st.integers(0, 2**32 - 1), max_size=40)


@given(tokens, st.integers(1, 8))
def test_only_complete_blocks_have_a_hash(token_ids: list[int], block_tokens: int) -> None:
    hashes = chain_block_hashes(pack_tokens(token_ids), block_tokens * TOKEN_BYTES, root_seed("m"))
    assert len(hashes) == len(token_ids) // block_tokens
    assert all(0 <= block_hash <= HASH_MASK for block_hash in hashes)


@given(tokens, tokens, st.integers(1, 8))
def test_equal_hashes_mean_equal_prefixes(one: list[int], other: list[int], block_tokens: int) -> None:
    block_bytes = block_tokens * TOKEN_BYTES
    of_one = chain_block_hashes(pack_tokens(one), block_bytes, 1)
    of_other = chain_block_hashes(pack_tokens(other), block_bytes, 1)
    for position, (a, b) in enumerate(zip(of_one, of_other, strict=False), start=1):
        end = position * block_tokens
        assert (a == b) == (one[:end] == other[:end])


@given(tokens, st.integers(0, 5))
def test_a_chain_can_be_continued(token_ids: list[int], num_first: int) -> None:
    """The hash of a block is the seed of the next: slices and events go on where the last one ended."""
    packed = pack_tokens(token_ids)
    cut = num_first * 2 * TOKEN_BYTES
    seed = root_seed("m")
    whole = chain_block_hashes(packed, 2 * TOKEN_BYTES, seed)
    first = chain_block_hashes(packed[:cut], 2 * TOKEN_BYTES, seed)
    rest = chain_block_hashes(packed[cut:], 2 * TOKEN_BYTES, first[-1] if first else seed)
    assert first + rest == whole


def test_what_a_prefix_depends_on_is_in_the_root() -> None:
    roots = [
        root_seed("m"),
        root_seed("n"),
        root_seed("m", adapter="a"),
        root_seed("m", cache_salt="a"),
        root_seed("m", unit=Unit.BYTES),
        root_seed("ma"),
        root_seed("", adapter="ma"),
    ]
    assert len(set(roots)) == len(roots)


def test_media_identify_a_block_and_all_after_it() -> None:
    packed = pack_tokens([1, 2, 3])
    plain = chain_block_hashes(packed, TOKEN_BYTES, 0)
    with_image = chain_block_hashes(packed, TOKEN_BYTES, 0, [b"", b"image", b""])
    assert with_image[0] == plain[0]
    assert with_image[1] != plain[1]
    assert with_image[2] != plain[2]


@pytest.mark.parametrize("token_id", [-1, 2**32, "1", None, 1.0])
def test_what_is_no_token_id_is_refused(token_id: object) -> None:
    with pytest.raises((OverflowError, TypeError)):
        pack_tokens([token_id])


def test_tokens_are_little_endian() -> None:
    assert pack_tokens([1, 0x01020304]) == b"\x01\x00\x00\x00\x04\x03\x02\x01"


def test_golden_values() -> None:
    """Gateways of different releases may compare their indexes: hashes never change."""
    seed = root_seed("model", adapter="adapter", cache_salt="salt")
    assert [seed, *chain_block_hashes(pack_tokens(range(8)), 4 * TOKEN_BYTES, seed)] == GOLDEN


GOLDEN = [417736065861492683, 250634060251053775, 230479462744219973]
