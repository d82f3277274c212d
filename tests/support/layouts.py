"""Payloads of the mock fleet's wire layouts, read by the adapter of the engine that spoke them."""

from __future__ import annotations

from indexer.adapters import ADAPTERS
from indexer.events import EventBatch
from loadgen.wire import RELEASES, Layout


def decoded(payload: bytes, layout: Layout) -> EventBatch:
    return ADAPTERS[RELEASES[layout].engine].decode(payload)
