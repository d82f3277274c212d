"""vLLM's KV events, every wire layout from 0.9.2 on.

A payload is a msgpack batch `[ts, events, data_parallel_rank]`; one development build sent it as a map. Up
to 0.23 an event is an array that begins with its class name, and grew at the end; from 0.24 on it is a map
with the key `type`. Hashes are signed ints (0.9.2, 0.10.0), unsigned ints, or byte strings. Elements at the
end, keys and event types that are not known here are skipped, as later versions add some.

The two layouts are decoded by types in one pass. A batch in which one event does not fit is decoded a second
time, event by event, so that the odd one alone is left out.

Before 0.17.1 an event does not say which cache salt its blocks were made with, so for those versions salted
and unsalted prompts cannot be told apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from indexer.adapters.errors import MalformedFrame
from indexer.events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch, KvEvent, Tier
from indexer.limits import EVENT_BLOCKS, EVENT_TOKENS, PAYLOAD_BYTES

_TIERS = {
    None: Tier.DEVICE,
    "GPU": Tier.DEVICE,
    "CPU": Tier.HOST,
    "CPU_PINNED": Tier.HOST,
    "CPU_TIER1": Tier.HOST,
    "CPU_TIER2": Tier.DISK,
    "DISK": Tier.DISK,
    "NVME": Tier.DISK,
    "STORAGE": Tier.DISK,
}
"""The media that engines and their offloading connectors name. On a CPU build the device is called GPU
too."""

_MAIN_GROUPS = frozenset({None, "full_attention", "mla"})
"""Kinds of KV-cache groups whose blocks make a prefix reusable by themselves. Sliding windows and states of
other layers come and go by their own rules."""


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
    locality: str | None = None


class _Removed(Struct, tag_field="type", tag="BlockRemoved"):
    block_hashes: list[int | bytes]
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None


class _Cleared(Struct, tag_field="type", tag="AllBlocksCleared"):
    pass


class _PositionalStored(Struct, tag="BlockStored", array_like=True):
    """The order is the wire's; locality came after the arrays had gone."""

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

    @property
    def locality(self) -> None:
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


class _Batch(Struct, array_like=True):
    ts: float
    events: list[_Stored | _Removed | _Cleared]
    data_parallel_rank: int | None = None


class _PositionalBatch(Struct, array_like=True):
    ts: float
    events: list[_PositionalStored | _PositionalRemoved | _PositionalCleared]
    data_parallel_rank: int | None = None


_TYPED_BATCHES = (msgspec.msgpack.Decoder(_Batch), msgspec.msgpack.Decoder(_PositionalBatch))
_DECODE_ANYTHING = msgspec.msgpack.Decoder().decode
_LAYOUTS: dict[type, dict[str, type[Struct]]] = {
    dict: {"BlockStored": _Stored, "BlockRemoved": _Removed, "AllBlocksCleared": _Cleared},
    list: {
        "BlockStored": _PositionalStored,
        "BlockRemoved": _PositionalRemoved,
        "AllBlocksCleared": _PositionalCleared,
    },
}
_ARRAY_OF_FLOAT_FIRST = (b"\x92\xcb", b"\x93\xcb")
_EVENT_OFFSET = 11
"""Where the first event begins in a batch `[float64, short array, ...]`."""


class _Unusable(Exception):
    """An event that is left out; the message is the reason it is counted under."""


class _UnreadableRemoval(_Unusable):
    """It may have named any block, so none can be believed any more."""


def decode(payload: bytes) -> EventBatch:
    """One message's payload as events. Raises MalformedFrame when it is no batch at all.

    About 0.2 us for a block of 16 tokens.
    """
    if len(payload) > PAYLOAD_BYTES:
        raise MalformedFrame(f"payload of {len(payload)} bytes, more than {PAYLOAD_BYTES}")
    batch = _decode_typed(payload)
    if batch is None:
        return _decode_generic(payload)
    return _translate(batch.events, batch.ts, batch.data_parallel_rank)


def _decode_typed(payload: bytes) -> _Batch | _PositionalBatch | None:
    for decoder in _TYPED_BATCHES if _first_event_is_map(payload) else reversed(_TYPED_BATCHES):
        try:
            return decoder.decode(payload)
        except (msgspec.DecodeError, RecursionError):
            continue
    return None


def _first_event_is_map(payload: bytes) -> bool:
    """A look at one byte saves the wrong attempt; wrong guesses cost only time."""
    if payload[:2] not in _ARRAY_OF_FLOAT_FIRST or len(payload) <= _EVENT_OFFSET:
        return True
    return not 0x90 <= payload[_EVENT_OFFSET] <= 0x9F


def _decode_generic(payload: bytes) -> EventBatch:
    try:
        batch = _DECODE_ANYTHING(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, TypeError, RecursionError) as error:
        raise MalformedFrame(f"no msgpack: {error}") from None
    if isinstance(batch, dict):
        batch = [batch.get("ts"), batch.get("events"), batch.get("data_parallel_rank")]
    if not isinstance(batch, list) or len(batch) < 2 or not isinstance(batch[1], list):
        raise MalformedFrame("no batch of the form [ts, events, rank]")
    timestamp = float(batch[0]) if isinstance(batch[0], int | float) else 0.0
    rank = batch[2] if len(batch) > 2 and isinstance(batch[2], int) else None
    return _translate(batch[1], timestamp, rank)


def _translate(raw_events: Sequence[Any], timestamp: float, rank: int | None) -> EventBatch:
    events: list[KvEvent] = []
    ignored: list[str] = []
    for raw in raw_events:
        try:
            events.append(_event(raw))
        except _UnreadableRemoval as reason:
            events.append(AllBlocksCleared())
            ignored.append(str(reason))
        except _Unusable as reason:
            ignored.append(str(reason))
    return EventBatch(events, timestamp, rank, ignored)


def _event(raw: object) -> KvEvent:
    event = raw if isinstance(raw, Struct) else _convert(raw)
    return _TRANSLATIONS[type(event)](event)


def _convert(raw: object) -> Struct:
    """One event of a batch that did not fit as a whole."""
    name = raw.get("type") if isinstance(raw, dict) else raw[0] if isinstance(raw, list) and raw else None
    layout = _LAYOUTS.get(type(raw), {})
    if not isinstance(name, str) or name not in layout:
        raise _Unusable("unknown_event")
    try:
        return msgspec.convert(raw, layout[name])
    except msgspec.ValidationError:
        if name == "BlockStored":
            raise _Unusable("malformed_event") from None
        raise _UnreadableRemoval("malformed_removal") from None


def _stored(event: _Stored) -> BlockStored:
    tier = _tier(event)
    if event.kv_cache_spec_kind not in _MAIN_GROUPS:
        raise _Unusable("attention_group")
    num_blocks, num_tokens = len(event.block_hashes), len(event.token_ids)
    if num_blocks > EVENT_BLOCKS or num_tokens > EVENT_TOKENS:
        raise _Unusable("too_large")
    if event.block_size < 1 or num_tokens not in (0, num_blocks * event.block_size):
        raise _Unusable("token_count")
    cache_salt, extra = _identity(event)
    return BlockStored(
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


def _removed(event: _Removed) -> BlockRemoved:
    if len(event.block_hashes) > EVENT_BLOCKS:
        raise _UnreadableRemoval("too_large")
    return BlockRemoved(event.block_hashes, _tier(event), event.group_idx or 0)


def _cleared(_event: _Cleared) -> AllBlocksCleared:
    return AllBlocksCleared()


def _tier(event: _Stored | _Removed) -> Tier:
    if event.locality == "REMOTE":
        raise _Unusable("remote")
    tier = _TIERS.get(event.medium)
    if tier is None:
        raise _Unusable("medium")
    return tier


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


_TRANSLATIONS: dict[type, Callable[[Any], KvEvent]] = {
    _Stored: _stored,
    _PositionalStored: _stored,
    _Removed: _removed,
    _PositionalRemoved: _removed,
    _Cleared: _cleared,
    _PositionalCleared: _cleared,
}
