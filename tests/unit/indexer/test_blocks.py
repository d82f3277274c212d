"""The chain of hashes: what makes two blocks equal, and what keeps them apart."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.blocks import (
    HASH_MASK,
    HASHINGS,
    TOKEN_BYTES,
    Unit,
    chain_block_hashes,
    num_complete_blocks,
    pack_tokens,
    root_seed,
)
from tests.support.recordings import FIXTURES

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


@given(tokens, st.integers(1, 8), st.integers(1, 3))
def test_lookahead_is_part_of_a_block(token_ids: list[int], block_tokens: int, lookahead: int) -> None:
    """A block is complete, and equal to another, only with the tokens behind it."""
    sizes = block_tokens * TOKEN_BYTES, lookahead * TOKEN_BYTES
    packed = pack_tokens(token_ids)
    hashes = chain_block_hashes(packed, sizes[0], 1, (), sizes[1])
    assert len(hashes) == num_complete_blocks(len(packed), *sizes)
    assert len(hashes) == max(0, len(token_ids) - lookahead) // block_tokens
    for position in range(len(hashes)):
        end = (position + 1) * block_tokens
        other = list(token_ids)
        other[end + lookahead - 1] ^= 1
        changed = chain_block_hashes(pack_tokens(other), sizes[0], 1, (), sizes[1])
        assert changed[position] != hashes[position]
        # A block is unchanged by what lies beyond its window.
        assert changed[: max(0, (end - 1) // block_tokens)] == hashes[: max(0, (end - 1) // block_tokens)]


@pytest.mark.parametrize("name", HASHINGS)
@given(tokens, st.integers(0, 5), st.integers(0, 2))
def test_every_hashing_goes_on_where_it_ended(
    name: str, token_ids: list[int], num_first: int, lookahead: int
) -> None:
    hashing = HASHINGS[name]
    root = hashing.root("m", adapter="a", cache_salt="s")
    packed = pack_tokens(token_ids)
    cut = num_first * 2 * TOKEN_BYTES
    sizes = 2 * TOKEN_BYTES, lookahead * TOKEN_BYTES
    whole = hashing.chain(packed, sizes[0], root, None, (), sizes[1])
    first = whole[:num_first]
    rest = hashing.chain(packed[cut:], sizes[0], root, first[-1] if first else None, (), sizes[1])
    assert first + rest == whole


@pytest.mark.parametrize("name", HASHINGS)
def test_every_hashing_keeps_apart_what_engines_keep_apart(name: str) -> None:
    hashing = HASHINGS[name]
    packed = pack_tokens(range(4))
    roots = [
        hashing.root("m"),
        hashing.root("m", adapter="a"),
        hashing.root("m", cache_salt="a"),
        hashing.root("m", adapter="a", cache_salt="a"),
        hashing.root("m", unit=Unit.BYTES),
    ]
    assert len({hashing.chain(packed, 16, root)[0] for root in roots}) == len(roots)
    media = [msgspec.msgpack.encode(keys) for keys in ([["0f" * 32, 0]], [["f0" * 32, 0]], [["image", 0]])]
    hashes = {tuple(hashing.chain(packed, 16, roots[0], None, [extra])) for extra in media}
    assert len(hashes | {tuple(hashing.chain(packed, 16, roots[0]))}) == 4


VECTORS = msgspec.json.decode((FIXTURES / "dynamo_block_hash_vectors.json").read_bytes())["vectors"]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_dynamos_hashes(vector: dict) -> None:
    """Block by block and in sequence, against values that Dynamo's own runtime gave."""
    dynamo = HASHINGS["dynamo"]
    root = dynamo.root(
        "any", adapter=vector.get("lora_name", ""), cache_salt=vector.get("cache_namespace", "")
    )
    extra = [
        b"" if numbers is None else msgspec.msgpack.encode([[f"{n:016x}" + "0" * 48, 0] for n in numbers])
        for numbers in vector.get("mm", ())
    ]
    packed, size = pack_tokens(vector["tokens"]), vector["block_size"] * TOKEN_BYTES
    lookahead = TOKEN_BYTES if vector.get("is_eagle") else 0
    hashes = dynamo.chain(packed, size, root, None, extra, lookahead)
    assert [f"{each:016x}" for each in hashes] == vector["sequence_hashes"]
    singles = [
        dynamo.chain(packed[start : start + size + lookahead], size, root, None, extra[number:], lookahead)
        for number, start in enumerate(range(0, len(hashes) * size, size))
    ]
    assert [f"{own:016x}" for [own] in singles] == vector["block_hashes"]


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
