"""One KV event as vLLM's releases encode it. Field names and order are vLLM's own and make the bytes; they
are not this project's vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256

import msgspec

from indexer.events import AllBlocksCleared, BlockRemoved, BlockStored, EngineHash, KvEvent

DEVICE_MEDIUM = "GPU"
FULL_ATTENTION = "full_attention"


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


def as_map(event: KvEvent) -> object:
    """From 0.24 on (fields as of 0.32)."""
    return _filled(event, _StoredMap, _RemovedMap, _ClearedMap)


def as_map_with_bytes(event: KvEvent) -> object:
    """The same with `VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0`: hashes are 32 bytes."""
    match event:
        case BlockStored():
            parent = None if event.parent_hash is None else _digest(event.parent_hash)
            hashes = list(map(_digest, event.block_hashes))
            event = BlockStored(
                hashes, parent, event.token_ids, event.block_tokens,
                adapter=event.adapter, cache_salt=event.cache_salt,
            )  # fmt: skip
        case BlockRemoved():
            event = BlockRemoved(list(map(_digest, event.block_hashes)))
    return as_map(event)


def as_array(event: KvEvent) -> object:
    """0.22.1 and 0.23."""
    return _filled(event, _StoredArray, _RemovedArray, _ClearedArray)


def as_short_array(event: KvEvent) -> object:
    """0.9.2 to 0.10.1: nothing behind `lora_id`, and hashes are signed."""
    match event:
        case BlockStored():
            parent = None if event.parent_hash is None else signed(event.parent_hash)
            lora_id = 1 if event.adapter else None
            hashes = list(map(signed, event.block_hashes))
            return ["BlockStored", hashes, parent, event.token_ids, event.block_tokens, lora_id]
        case BlockRemoved():
            return ["BlockRemoved", list(map(signed, event.block_hashes))]
        case AllBlocksCleared():
            return ["AllBlocksCleared"]


def signed(block_hash: EngineHash) -> int:
    """64 bits as two's complement."""
    assert isinstance(block_hash, int)
    return block_hash - 2**64 if block_hash >= 2**63 else block_hash


def _digest(block_hash: EngineHash) -> bytes:
    assert isinstance(block_hash, int)
    return sha256(block_hash.to_bytes(8, "big")).digest()


def _filled(
    event: KvEvent,
    stored: type[_StoredMap],
    removed: type[_RemovedMap],
    cleared: Callable[[], msgspec.Struct],
) -> msgspec.Struct:
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
