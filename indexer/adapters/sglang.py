"""SGLang's KV events, every release from 0.4.7 to 0.5.23.

Up to 0.5.20 an event is an array, from 0.5.21 on a map. Hashes are signed 64-bit ints. A block is a page of
the radix tree (`--page-size`, 1 by default: then an event names single tokens). Up to 0.5.19 or so there is
one stored and one removed event for each page, later those of a chain are joined and a removal names all
pages of a node. `format: dynamo` publishes other hashes in the same layout: they depend on adapter and salt
wholly, and are only keys here.

A tree holds a page once in each medium, so a page that is stored again is no second copy of it.

Under EAGLE the tree's keys are pairs of neighbouring tokens: a page covers one token more than it is long,
which is a lookahead of one.

What releases cannot tell: before 0.5.9 there is no medium; before 0.5.21 an event does not name the cache
salt, before 0.5.23 not the adapter. Up to then pages of different salts or adapters cannot be told apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import cast

from msgspec import Struct

from indexer.adapters.reading import BatchReader, UnreadableRemoval, Unusable, tier_of
from indexer.events import AllBlocksCleared, BlockRemoved, BlockStored
from indexer.limits import EVENT_BLOCKS, EVENT_TOKENS

_Pair = tuple[int, int]


class _Stored(Struct, tag_field="type", tag="BlockStored"):
    """`session_id` only says which session stored the blocks; others may use them."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int | _Pair]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    cache_salt: str | None = None
    lora_name: str | None = None


class _Removed(Struct, tag_field="type", tag="BlockRemoved"):
    block_hashes: list[int]
    medium: str | None = None


class _Cleared(Struct, tag_field="type", tag="AllBlocksCleared"):
    pass


class _PositionalStored(Struct, tag="BlockStored", array_like=True):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int | _Pair]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None

    @property
    def cache_salt(self) -> None:
        return None

    @property
    def lora_name(self) -> None:
        return None


class _PositionalRemoved(Struct, tag="BlockRemoved", array_like=True):
    block_hashes: list[int]
    medium: str | None = None


class _PositionalCleared(Struct, tag="AllBlocksCleared", array_like=True):
    pass


def _stored(event: _Stored) -> BlockStored:
    tier = tier_of(event.medium)
    num_blocks, num_tokens = len(event.block_hashes), len(event.token_ids)
    if num_blocks > EVENT_BLOCKS or num_tokens > EVENT_TOKENS:
        raise Unusable("too_large")
    if num_tokens and (event.block_size < 1 or num_tokens != num_blocks * event.block_size):
        raise Unusable("token_count")
    token_ids, lookahead_tokens = _without_pairs(event.token_ids)
    return BlockStored(
        block_hashes=event.block_hashes,
        parent_hash=event.parent_block_hash,
        token_ids=token_ids,
        block_tokens=event.block_size,
        tier=tier,
        adapter=_adapter(event),
        cache_salt=event.cache_salt or "",
        lookahead_tokens=lookahead_tokens,
    )


def _removed(event: _Removed) -> BlockRemoved:
    if len(event.block_hashes) > EVENT_BLOCKS:
        raise UnreadableRemoval("too_large")
    return BlockRemoved(event.block_hashes, tier_of(event.medium))


def _cleared(_event: _Cleared) -> AllBlocksCleared:
    return AllBlocksCleared()


def _adapter(event: _Stored) -> str:
    if event.lora_name is not None:
        return event.lora_name
    return "" if event.lora_id is None else f"lora_id {event.lora_id}"


def _without_pairs(token_ids: Sequence[int | _Pair]) -> tuple[Sequence[int], int]:
    """Pairs [(a, b), (b, c)] are the tokens [a, b, c], the last of them lookahead. Raises Unusable where they
    are no chain."""
    pairs = [token for token in token_ids if not isinstance(token, int)]
    if not pairs:
        return cast("Sequence[int]", token_ids), 0
    is_chain = all(one[1] == after[0] for one, after in pairwise(pairs))
    if len(pairs) != len(token_ids) or not is_chain:
        raise Unusable("token_pairs")
    return [*(pair[0] for pair in pairs), pairs[-1][1]], 1


decode = BatchReader(
    maps={_Stored: _stored, _Removed: _removed, _Cleared: _cleared},
    arrays={_PositionalStored: _stored, _PositionalRemoved: _removed, _PositionalCleared: _cleared},
).decode
