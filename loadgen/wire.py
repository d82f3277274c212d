"""KV events in vLLM's wire format, in both layouts that its releases have spoken.

`MAPS` is that of 0.24 and newer (fields as of 0.32), `ARRAYS` the positional one up to 0.23. Field names and
order are vLLM's own and make the bytes; they are not this project's vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum

import msgspec

from indexer.events import AllBlocksCleared, BlockRemoved, BlockStored, EngineHash, KvEvent

DEVICE_MEDIUM = "GPU"
FULL_ATTENTION = "full_attention"
SEQUENCE_BYTES = 8
"""Sequence numbers travel as unsigned big-endian integers."""
END_OF_REPLAY = b"\xff" * SEQUENCE_BYTES


class Layout(StrEnum):
    MAPS = "maps"
    ARRAYS = "arrays"


class _StoredMap(msgspec.Struct, tag="BlockStored", kw_only=True):
    block_hashes: Sequence[EngineHash]
    parent_block_hash: EngineHash | None
    token_ids: Sequence[int]
    block_size: int
    lora_id: int | None
    medium: str
    lora_name: str | None
    extra_keys: list[list[str] | None]
    group_idx: int = 0
    kv_cache_spec_kind: str = FULL_ATTENTION


class _RemovedMap(msgspec.Struct, tag="BlockRemoved", kw_only=True):
    block_hashes: Sequence[EngineHash]
    medium: str
    group_idx: int = 0


class _ClearedMap(msgspec.Struct, tag="AllBlocksCleared"):
    pass


class _StoredArray(_StoredMap, tag="BlockStored", array_like=True, kw_only=True):
    kv_cache_spec_sliding_window: int | None = None


class _RemovedArray(_RemovedMap, tag="BlockRemoved", array_like=True, kw_only=True):
    pass


class _ClearedArray(msgspec.Struct, tag="AllBlocksCleared", array_like=True):
    pass


_STRUCTS: dict[Layout, tuple[type[_StoredMap], type[_RemovedMap], Callable[[], msgspec.Struct]]] = {
    Layout.MAPS: (_StoredMap, _RemovedMap, _ClearedMap),
    Layout.ARRAYS: (_StoredArray, _RemovedArray, _ClearedArray),
}

_ENCODER = msgspec.msgpack.Encoder()


def encode_batch(events: Sequence[KvEvent], *, timestamp: float, dp_rank: int, layout: Layout) -> bytes:
    """The payload frame of one message; `timestamp` in Unix seconds."""
    return _ENCODER.encode([timestamp, [_encode(event, layout) for event in events], dp_rank])


def encode_sequence(sequence: int) -> bytes:
    return sequence.to_bytes(SEQUENCE_BYTES, "big")


def replay_frames(topic: bytes, sequence: bytes, payload: bytes, layout: Layout) -> list[bytes]:
    """One answer of the replay socket, behind the identity frame: the topic is in it from 0.26 on."""
    return [b"", topic, sequence, payload] if layout is Layout.MAPS else [b"", sequence, payload]


def end_of_replay_frames(layout: Layout) -> list[bytes]:
    """The marker that ends a replay."""
    return replay_frames(b"", END_OF_REPLAY, b"", layout)


def _encode(event: KvEvent, layout: Layout) -> msgspec.Struct:
    stored, removed, cleared = _STRUCTS[layout]
    match event:
        case BlockStored():
            return stored(
                block_hashes=event.block_hashes,
                parent_block_hash=event.parent_hash,
                token_ids=event.token_ids,
                block_size=event.block_tokens,
                lora_id=1 if event.adapter else None,
                medium=DEVICE_MEDIUM,
                lora_name=event.adapter or None,
                extra_keys=_extra_keys(event),
            )
        case BlockRemoved():
            return removed(block_hashes=event.block_hashes, medium=DEVICE_MEDIUM)
        case AllBlocksCleared():
            return cleared()


def _extra_keys(event: BlockStored) -> list[list[str] | None]:
    """The adapter's name with every block, the salt with the first block of a prompt only."""
    keys = [[event.adapter] if event.adapter else None for _ in event.block_hashes]
    if event.cache_salt:
        keys[0] = [*(keys[0] or ()), event.cache_salt]
    return keys
