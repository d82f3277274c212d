"""vLLM's KV events, every release from 0.9.2 to 0.33.

Up to 0.23 an event is an array, which grew at the end; from 0.24 on it is a map. Hashes are signed ints
(0.9.2, 0.10.0), unsigned ints, or byte strings.

What releases cannot tell:

* Before 0.10.2 there is no medium, and before 0.14.1 an adapter is only a number, which no request can meet.
* Before 0.17.1 an event does not say which cache salt its blocks were made with, so salted and unsalted
  prompts cannot be told apart.
* From 0.20.2 to 0.22.0 a group has a number and no kind: the first group seen counts, the others do not.
* The groups of layers that do not see the whole prefix skip blocks: their events hold the tokens of all and
  name only some, without saying which. So those name blocks that the main group's events describe.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from indexer.adapters.reading import TIERS, BatchReader, UnreadableRemoval, Unusable, tier_of
from indexer.events import AllBlocksCleared, BlockRemoved, BlockStored, GroupKind, Tier
from indexer.limits import EVENT_BLOCKS, EVENT_TOKENS

_FULL = GroupKind.FULL
"""By a name of its own: looking up a member of an enumeration takes longer than all else about a kind."""

_KINDS = {
    None: GroupKind.UNTOLD,
    "sliding_window": GroupKind.WINDOW,
    "sliding_window_mla": GroupKind.WINDOW,
    "mamba": GroupKind.STATE,
    "encoder_only_attention": GroupKind.UNTOLD,
    "cross_attention": GroupKind.UNTOLD,
}
"""All others are taken for full attention, which never promises too much: also the chunked local kind, since
no event says how long a chunk is. What the last two hold is no prefix of the prompt."""


class _Stored(Struct, tag_field="type", tag="BlockStored"):
    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    lookahead_token_ids: list[list[int] | None] | None = None


class _Removed(Struct, tag_field="type", tag="BlockRemoved"):
    block_hashes: list[int | bytes]
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None


class _Cleared(Struct, tag_field="type", tag="AllBlocksCleared"):
    pass


class _PositionalStored(Struct, tag="BlockStored", array_like=True):
    """The order is the wire's; locality and lookahead came after the arrays had gone."""

    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None

    @property
    def locality(self) -> None:
        return None

    @property
    def lookahead_token_ids(self) -> None:
        return None


class _PositionalRemoved(Struct, tag="BlockRemoved", array_like=True):
    block_hashes: list[int | bytes]
    medium: str | None = None
    group_idx: int | None = None

    @property
    def locality(self) -> None:
        return None


class _PositionalCleared(Struct, tag="AllBlocksCleared", array_like=True):
    pass


def _stored(event: _Stored) -> BlockStored:
    tier = _tier(event)
    kind = _KINDS.get(event.kv_cache_spec_kind, _FULL)
    if kind is not _FULL:
        kind = _told_kind(event, kind)
    num_blocks, num_tokens = len(event.block_hashes), len(event.token_ids)
    if num_blocks > EVENT_BLOCKS or num_tokens > EVENT_TOKENS:
        raise Unusable("too_large")
    if num_tokens and (event.block_size < 1 or num_tokens != num_blocks * event.block_size):
        if kind is not GroupKind.WINDOW and kind is not GroupKind.STATE:
            raise Unusable("token_count")
        event.token_ids = []  # some blocks were skipped: see above
    cache_salt, extra = _identity(event)
    stored = BlockStored(
        block_hashes=event.block_hashes,
        parent_hash=event.parent_block_hash,
        token_ids=event.token_ids,
        block_tokens=event.block_size,
        tier=tier,
        adapter=_adapter(event),
        cache_salt=cache_salt,
        extra=extra,
        group=event.group_idx or 0,
    )
    if kind is not _FULL:
        stored.kind = kind
        stored.window_tokens = event.kv_cache_spec_sliding_window or 0
    if event.lookahead_token_ids and event.token_ids:
        _add_lookahead(stored, event.lookahead_token_ids)
    return stored


def _removed(event: _Removed) -> BlockRemoved:
    if len(event.block_hashes) > EVENT_BLOCKS:
        raise UnreadableRemoval("too_large")
    return BlockRemoved(event.block_hashes, _tier(event), event.group_idx or 0)


def _cleared(_event: _Cleared) -> AllBlocksCleared:
    return AllBlocksCleared()


def _tier(event: _Stored | _Removed) -> Tier:
    """Whatever secondary tier owns a block (`ownership`), it counts where the medium is the worker's own."""
    if event.locality == "REMOTE":
        raise Unusable("remote")
    return TIERS.get(event.medium) or tier_of(event.medium)


def _told_kind(event: _Stored, kind: GroupKind) -> GroupKind:
    """The kind of a group that may not be one of full attention, as far as its event tells."""
    if kind is GroupKind.WINDOW and not event.kv_cache_spec_sliding_window:
        return GroupKind.FULL  # windows of several lengths: how much is needed is not known
    if kind is not GroupKind.UNTOLD:
        return kind
    if event.kv_cache_spec_kind is not None:
        raise Unusable("attention_group")
    return GroupKind.FULL if event.group_idx is None else kind  # a release without groups


def _adapter(event: _Stored) -> str:
    """Adapters go by name, as in requests. Before 0.14.1 there is only a number, which no request can
    meet."""
    if event.lora_name is not None:
        return event.lora_name
    return "" if event.lora_id is None else f"lora_id {event.lora_id}"


def _identity(event: _Stored) -> tuple[str, Sequence[bytes]]:
    """The cache salt and, per block, what else went into the engine's hash.

    The keys come untagged: the adapter's name in every block, the salt in the first block of a prompt (the
    first text that is not the adapter), pairs of identifier and offset for media.
    """
    if not event.extra_keys or not any(event.extra_keys):
        return "", ()
    salt = ""
    extra = [b""] * len(event.block_hashes)
    for position, keys in enumerate(event.extra_keys[: len(extra)]):
        rest = list(keys or ())
        if event.lora_name is not None and event.lora_name in rest:
            rest.remove(event.lora_name)
        if position == 0 and event.parent_block_hash is None:
            salt = next((key for key in rest if isinstance(key, str)), "")
            rest = rest if not salt else [key for key in rest if key != salt]
        if rest:
            extra[position] = msgspec.msgpack.encode(rest)
    return salt, extra if any(extra) else ()


def _add_lookahead(stored: BlockStored, lookahead: Sequence[Sequence[int] | None]) -> None:
    """The tokens behind each block that its hash covers too: the next block's first, and for the last block
    some that are in no block yet. Raises Unusable where they do not fit together."""
    last = list(lookahead[-1] or ())
    following = [*stored.token_ids, *last]
    size = stored.block_tokens
    starts = range(size, len(stored.token_ids) + 1, size)
    if len(lookahead) != len(starts) or len(last) > size:
        raise Unusable("lookahead")
    for start, tokens in zip(starts, lookahead, strict=True):
        if following[start : start + len(last)] != list(tokens or ()):
            raise Unusable("lookahead")
    stored.token_ids = following
    stored.lookahead_tokens = len(last)


decode = BatchReader(
    maps={_Stored: _stored, _Removed: _removed, _Cleared: _cleared},
    arrays={_PositionalStored: _stored, _PositionalRemoved: _removed, _PositionalCleared: _cleared},
).decode
