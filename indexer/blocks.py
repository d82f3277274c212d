"""The identity of a block, and the only hashing there is.

A block's hash is chained through all blocks before it: the parent's hash is the seed of the next one, so
equal hashes mean equal prefixes, and a flat map from hash to holders is a whole radix tree. The first seed
names what else a prefix depends on: model, adapter, cache salt, and whether its units are tokens or bytes.

The request side and the event side both come through here, through one row of HASHINGS: ours, or Dynamo's for
those who compare indexes with it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from struct import Struct, iter_unpack
from sys import byteorder
from typing import NamedTuple, Protocol

import msgspec
from xxhash import xxh3_64_intdigest

BlockHash = int
"""Ours: unsigned, HASH_BITS wide, chained. Dynamo's have 64 bits."""

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
    """The workers whose blocks are comparable: one base model, one layout, one row of HASHINGS. One hash
    chain for each.

    A tuple, since it is a key that every request looks up several times.
    """

    base_model: str
    block_tokens: int
    lookahead_tokens: int = 0
    hashing: str = "kvgate"


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
    hashes: list[BlockHash] = []
    append = hashes.append
    for (block,) in _cut(packed, block_bytes, lookahead_bytes):
        if extra and (media := extra[len(hashes)]):
            block = b"".join((block, media))
        seed = xxh3_64_intdigest(block, seed) & HASH_MASK
        append(seed)
    return hashes


class BlockHashing(Protocol):
    """A way of hashing blocks. `needs_root`: a prompt's root enters every block's hash, not the first's
    alone."""

    needs_root: bool

    def root(
        self, base_model: str, *, adapter: str = "", cache_salt: str = "", unit: Unit = Unit.TOKENS
    ) -> BlockHash:
        """What a prompt's blocks depend on besides what they hold. Adapter and salt are empty when there are
        none."""
        ...

    def chain(
        self,
        packed: bytes | memoryview,
        block_bytes: int,
        root: BlockHash,
        parent: BlockHash | None = None,
        extra: Sequence[bytes] = (),
        lookahead_bytes: int = 0,
    ) -> list[BlockHash]:
        """Hashes of complete blocks behind `parent`, or from a prompt's start; see chain_block_hashes."""
        ...


class KvgateHashing:
    """Ours. The parent's hash stands for all before it, the root included."""

    needs_root = False

    def root(
        self, base_model: str, *, adapter: str = "", cache_salt: str = "", unit: Unit = Unit.TOKENS
    ) -> BlockHash:
        return root_seed(base_model, adapter=adapter, cache_salt=cache_salt, unit=unit)

    def chain(
        self,
        packed: bytes | memoryview,
        block_bytes: int,
        root: BlockHash,
        parent: BlockHash | None = None,
        extra: Sequence[bytes] = (),
        lookahead_bytes: int = 0,
    ) -> list[BlockHash]:
        seed = root if parent is None else parent
        return chain_block_hashes(packed, block_bytes, seed, extra, lookahead_bytes)


_DYNAMO_SEED = 1337
_BITS_64 = (1 << 64) - 1
_pack_pair = Struct("<QQ").pack


class DynamoHashing:
    """NVIDIA Dynamo's: a block's own hash, of its tokens and its media under a seed of adapter and salt, and
    from it the sequence hash, of the one before and it. Checked against vectors of ai-dynamo-runtime 1.6.1.

    A router of Dynamo's knows a worker's blocks by the same hashes. Two calls a block take 1.7 times as long
    as ours, and integers of 64 bits cost 16 bytes more each. Base models are kept apart by their workers
    alone.
    """

    needs_root = True

    def root(
        self, base_model: str, *, adapter: str = "", cache_salt: str = "", unit: Unit = Unit.TOKENS
    ) -> BlockHash:
        if unit is Unit.BYTES:  # no engine and no Dynamo has such blocks
            return root_seed(base_model, adapter=adapter, cache_salt=cache_salt, unit=unit)
        seed = _DYNAMO_SEED
        if adapter:
            seed += xxh3_64_intdigest(adapter.encode("utf-8", "surrogatepass"), 0)
        if cache_salt:
            seed += xxh3_64_intdigest(cache_salt.encode("utf-8", "surrogatepass"), 1)
        return seed & _BITS_64

    def chain(
        self,
        packed: bytes | memoryview,
        block_bytes: int,
        root: BlockHash,
        parent: BlockHash | None = None,
        extra: Sequence[bytes] = (),
        lookahead_bytes: int = 0,
    ) -> list[BlockHash]:
        hashes: list[BlockHash] = []
        for (block,) in _cut(packed, block_bytes, lookahead_bytes):
            if extra and (media := extra[len(hashes)]):
                block = b"".join((block, _dynamo_media(media)))
            own = xxh3_64_intdigest(block, root)
            parent = own if parent is None else xxh3_64_intdigest(_pack_pair(parent, own), _DYNAMO_SEED)
            hashes.append(parent)
        return hashes


HASHINGS: Mapping[str, BlockHashing] = {"kvgate": KvgateHashing(), "dynamo": DynamoHashing()}
"""The values of `--block-hash`."""


def _dynamo_media(extra: bytes) -> bytes:
    """A block's media as Dynamo hashes them: the first 16 hex digits of each identifier as an integer, in
    order. Identifiers of another form are hashed to one."""
    identifiers = [key[0] if isinstance(key, list) and key else key for key in msgspec.msgpack.decode(extra)]
    return b"".join(number.to_bytes(8, "little") for number in sorted(map(_media_number, identifiers)))


def _media_number(identifier: object) -> int:
    try:
        return int(str(identifier)[:16], 16) & _BITS_64
    except ValueError:
        return xxh3_64_intdigest(repr(identifier).encode("utf-8", "surrogatepass"))


def num_complete_blocks(num_bytes: int, block_bytes: int, lookahead_bytes: int = 0) -> int:
    """Blocks that are complete, with what their hashes cover behind them."""
    return max(0, num_bytes - lookahead_bytes) // block_bytes


def _cut(
    packed: bytes | memoryview, block_bytes: int, lookahead_bytes: int
) -> Iterator[tuple[bytes | memoryview]]:
    """Each complete block, with what its hash covers behind it."""
    view = memoryview(packed)
    if not lookahead_bytes:  # cutting in C takes half the time of slicing here
        return iter_unpack(f"{block_bytes}s", view[: len(view) // block_bytes * block_bytes])
    end = num_complete_blocks(len(view), block_bytes, lookahead_bytes) * block_bytes
    size = block_bytes + lookahead_bytes
    return ((view[start : start + size],) for start in range(0, end, block_bytes))
