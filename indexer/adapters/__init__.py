"""Adapters: the payloads of one engine's KV events -> EventBatch. After here no code knows which engine
spoke.

One file per engine, one row in the table. `tests/contract/test_adapters.py` runs over every row.
"""

from __future__ import annotations

from collections.abc import Callable

from indexer.adapters import vllm
from indexer.adapters.errors import MalformedFrame
from indexer.events import EventBatch

Adapter = Callable[[bytes], EventBatch]
"""Decodes one payload. Raises MalformedFrame only when it is no batch at all."""

ADAPTERS: dict[str, Adapter] = {"vllm": vllm.decode}

__all__ = ["ADAPTERS", "Adapter", "MalformedFrame"]
