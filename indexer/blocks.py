"""The identity of a block, and the only hashing there is.

A block's hash is chained through all blocks before it: the parent's hash is the seed of the next one, so
equal hashes mean equal prefixes, and a flat map from hash to holders is a whole radix tree. The first seed
names what else a prefix depends on: model, adapter, cache salt, and whether its units are tokens or bytes.

The request side and the event side both come through here.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from enum import StrEnum
from struct import iter_unpack
from sys import byteorder
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

BlockHash = int
"""Ours: unsigned, HASH_BITS wide, chained."""

HASH_BITS = 60
"""CPython keeps an integer of up to 60 bits in 32 bytes and a wider one in 48; the index holds millions of
them. With ten million blocks the chance of one collision anywhere is 5e-5."""

HASH_MASK = (1 << HASH_BITS) - 1

TOKEN_BYTES = 4
"""Token ids are hashed as little-endian u32. Byte prompts count as many bytes for one token (a common
mean)."""


class Unit(StrEnum):
    """What a prompt is made of: a request lives in one of the two spaces, and they never meet."""

    TOKENS = "tokens"
    BYTES = "bytes"


class Layout(NamedTuple):
    """How a worker cuts prompts into blocks, as its events show it.

    `lookahead_tokens`: tokens behind a block that its hash covers too, where the engine's own does (1 with
    the token pairs that SGLang's trees hold under EAGLE). A block is complete only with them.
    """

    block_tokens: int
    lookahead_tokens: int = 0


class HashSpace(NamedTuple):
    """The workers whose blocks are comparable: one base model, one layout. One hash chain for each.

    A tuple, since it is a key that every request looks up several times.
    """

    base_model: str
    block_tokens: int
    lookahead_tokens: int = 0


def root_seed(
    base_model: str, *, adapter: str = "", cache_salt: str = "", unit: Unit = Unit.TOKENS
) -> BlockHash:
    """The seed of a prompt's first block. Adapter and salt are empty when there are none."""
    parts = (base_model, adapter, cache_salt, unit.value)
    # Length prefixes keep ("ab", "c") and ("a", "bc") apart.
    encoded = "".join(f"{len(part)}:{part}" for part in parts).encode("utf-8", "surrogatepass")
    return xxh3_64_intdigest(encoded) & HASH_MASK


def pack_tokens(token_ids: Sequence[int]) -> bytes:
    """Token ids as little-endian u32. Raises OverflowError or TypeError for what is no u32."""
    packed = array("I", token_ids)
    if byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def chain_block_hashes(
    packed: bytes | memoryview,
    block_bytes: int,
    seed: BlockHash,
    extra: Sequence[bytes] = (),
    lookahead_bytes: int = 0,
) -> list[BlockHash]:
    """Hashes of the complete blocks of `packed`; a partial tail has none.

    `block_bytes` is block_tokens * TOKEN_BYTES, `lookahead_bytes` that of the tokens behind each block that
    its hash covers too. `extra[i]`, where not empty, is hashed behind block i's tokens (media identities).
    About 0.1 us a block.
    """
    blocks: Iterator[tuple[bytes | memoryview]]
    if lookahead_bytes:
        blocks = _windows(packed, block_bytes, lookahead_bytes)
    else:  # cutting in C takes half the time of slicing here
        complete = memoryview(packed)[: len(packed) // block_bytes * block_bytes]
        blocks = iter_unpack(f"{block_bytes}s", complete)
    hashes: list[BlockHash] = []
    append = hashes.append
    for (block,) in blocks:
        if extra and (media := extra[len(hashes)]):
            block = b"".join((block, media))
        seed = xxh3_64_intdigest(block, seed) & HASH_MASK
        append(seed)
    return hashes


def num_complete_blocks(num_bytes: int, block_bytes: int, lookahead_bytes: int = 0) -> int:
    """Blocks that are complete, with what their hashes cover behind them."""
    return max(0, num_bytes - lookahead_bytes) // block_bytes


def _windows(
    packed: bytes | memoryview, block_bytes: int, lookahead_bytes: int
) -> Iterator[tuple[bytes | memoryview]]:
    """Each block with what its hash covers behind it."""
    view = memoryview(packed)
    end = num_complete_blocks(len(view), block_bytes, lookahead_bytes) * block_bytes
    size = block_bytes + lookahead_bytes
    return ((view[start : start + size],) for start in range(0, end, block_bytes))
