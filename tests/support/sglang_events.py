"""SGLang's event payloads, written out as its releases send them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

Token = int | tuple[int, int]


def stored(
    hashes: Sequence[int],
    token_ids: Sequence[Token],
    *,
    parent: int | None = None,
    page_size: int = 4,
    **fields: object,
) -> dict[str, object]:
    """A BlockStored map, of 0.5.21 and later: optional fields only where they are set."""
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": parent,
        "token_ids": list(token_ids),
        "block_size": page_size,
        "lora_id": None,
        "medium": "GPU",
        **fields,
    }


def pages(
    hashes: Sequence[int],
    token_ids: Sequence[Token],
    *,
    parent: int | None = None,
    page_size: int = 4,
    medium: str | None = "GPU",
) -> list[list[object]]:
    """BlockStored arrays, one for each page, as up to 0.5.20. Without a medium: before 0.5.9."""
    tail = [] if medium is None else [medium]
    parents = [parent, *hashes]
    return [
        [
            "BlockStored",
            [page],
            parents[number],
            list(token_ids[number * page_size : (number + 1) * page_size]),
            page_size,
            None,
            *tail,
        ]
        for number, page in enumerate(hashes)
    ]


def removed(*hashes: int, medium: str = "GPU") -> dict[str, object]:
    """A BlockRemoved map: all pages of a node."""
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": medium}


def cleared() -> dict[str, object]:
    """An AllBlocksCleared map."""
    return {"type": "AllBlocksCleared"}


def pairs(token_ids: Sequence[int]) -> list[tuple[int, int]]:
    """The keys of the tree under EAGLE: one less than there are tokens."""
    return list(pairwise(token_ids))
