"""Adapters: the payloads of one engine's KV events -> EventBatch. After here no code knows which engine
spoke.

One file per engine, one row in the table. `tests/contract/test_adapters.py` runs over every row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from indexer.adapters import sglang, vllm
from indexer.adapters.errors import MalformedFrame
from indexer.events import EventBatch


@dataclass(frozen=True, slots=True)
class Adapter:
    """`decode` reads one payload; it raises MalformedFrame only when that is no batch at all.

    `keeps_copies`: the engine stores a block again when it computed it again, and removes it once per copy.
    """

    decode: Callable[[bytes], EventBatch]
    keeps_copies: bool


ADAPTERS: dict[str, Adapter] = {
    "vllm": Adapter(vllm.decode, keeps_copies=True),
    "sglang": Adapter(sglang.decode, keeps_copies=False),
}

__all__ = ["ADAPTERS", "Adapter", "MalformedFrame"]
