"""vLLM's event payloads, written out as its releases send them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

EngineHash = int | bytes


def batch(*events: object, timestamp: float = 1.0, rank: int | None = 0) -> bytes:
    """One message's payload."""
    return msgspec.msgpack.encode([timestamp, list(events), rank])


def stored(
    hashes: Sequence[EngineHash],
    token_ids: Sequence[int],
    *,
    parent: EngineHash | None = None,
    block_tokens: int = 4,
    **fields: object,
) -> dict[str, object]:
    """A BlockStored map, of 0.24 and later."""
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": parent,
        "token_ids": list(token_ids),
        "block_size": block_tokens,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": None,
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
        **fields,
    }


def removed(*hashes: EngineHash, **fields: object) -> dict[str, object]:
    """A BlockRemoved map."""
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU", "group_idx": 0, **fields}


def cleared() -> dict[str, object]:
    """An AllBlocksCleared map."""
    return {"type": "AllBlocksCleared"}
