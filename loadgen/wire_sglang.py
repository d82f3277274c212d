"""KV events as SGLang's releases send them: one for each page, of a tree that holds equal content once.

Field names are SGLang's own, read in its sources (0.4.7 to 0.5.23).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from indexer.events import AllBlocksCleared, BlockRemoved, BlockStored, EngineHash, KvEvent
from loadgen.wire_vllm import DEVICE_MEDIUM, signed


class TreeEvents:
    """What a tree tells where an engine with copies would tell of each copy: the first and the last alone."""

    def __init__(self) -> None:
        self._copies: Counter[EngineHash] = Counter()

    def of(self, events: Iterable[KvEvent]) -> list[KvEvent]:
        return [told for event in events for told in self._told(event)]

    def _told(self, event: KvEvent) -> Iterator[KvEvent]:
        match event:
            case BlockStored():
                yield from self._stored(event)
            case BlockRemoved():
                if gone := [each for each in event.block_hashes if self._is_last(each)]:
                    yield BlockRemoved(gone)
            case AllBlocksCleared():
                self._copies.clear()
                yield event

    def _stored(self, event: BlockStored) -> Iterator[BlockStored]:
        size, parent = event.block_tokens, event.parent_hash
        for place, block_hash in enumerate(event.block_hashes):
            self._copies[block_hash] += 1
            if self._copies[block_hash] == 1:
                page = event.token_ids[place * size : (place + 1) * size]
                yield BlockStored(
                    [block_hash], parent, page, size, adapter=event.adapter, cache_salt=event.cache_salt
                )
            parent = block_hash

    def _is_last(self, block_hash: EngineHash) -> bool:
        self._copies[block_hash] -= 1
        if self._copies[block_hash]:
            return False
        del self._copies[block_hash]
        return True


def as_map(event: KvEvent) -> object:
    """From 0.5.21 on (fields as of 0.5.23): optional fields that are nil are left out."""
    match event:
        case BlockStored():
            optional = {"cache_salt": event.cache_salt, "lora_name": event.adapter}
            return {
                "type": "BlockStored",
                "block_hashes": _signed(event.block_hashes),
                "parent_block_hash": None if event.parent_hash is None else signed(event.parent_hash),
                "token_ids": event.token_ids,
                "block_size": event.block_tokens,
                "lora_id": None,
                "medium": DEVICE_MEDIUM,
            } | {name: value for name, value in optional.items() if value}
        case BlockRemoved():
            hashes = _signed(event.block_hashes)
            return {"type": "BlockRemoved", "block_hashes": hashes, "medium": DEVICE_MEDIUM}
        case AllBlocksCleared():
            return {"type": "AllBlocksCleared"}


def as_array(event: KvEvent) -> object:
    """0.5.9 to 0.5.20."""
    fields = as_short_array(event)
    return fields if isinstance(event, AllBlocksCleared) else [*fields, DEVICE_MEDIUM]


def as_short_array(event: KvEvent) -> list[object]:
    """0.4.7 to 0.5.8: every page is taken to be in the GPU's memory."""
    match event:
        case BlockStored():
            parent = None if event.parent_hash is None else signed(event.parent_hash)
            hashes = _signed(event.block_hashes)
            return ["BlockStored", hashes, parent, event.token_ids, event.block_tokens, None]
        case BlockRemoved():
            return ["BlockRemoved", _signed(event.block_hashes)]
        case AllBlocksCleared():
            return ["AllBlocksCleared"]


def _signed(hashes: Sequence[EngineHash]) -> list[int]:
    return list(map(signed, hashes))
