"""One worker as a row of `/workers`: JSON values, with the same words as metrics and logs."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from indexer.feed import KvFeed
from router.core.workers import WorkerView
from router.engines.describe import predicted_because
from router.fleet.watch import WorkerWatch


def worker_row(watch: WorkerWatch, view: WorkerView | None, feed: KvFeed) -> dict[str, Any]:
    """`view` is None while the worker has not answered yet."""
    spec = watch.spec
    return {
        "id": spec.id,
        "url": spec.url,
        "role": spec.role.value,
        "state": view.state if view is not None else "pending",
        "error": watch.error or None,
        "trust": _trust(watch, view),
        "load": _load(view),
        "engine_gauges": asdict(watch.gauges),
        "index": _index(view),
        "engine": _engine(watch),
        "kv_events": spec.kv_events,
        "kv_replay": spec.kv_replay,
        "events": _events(view, feed),
    }


def _events(view: WorkerView | None, feed: KvFeed) -> dict[str, Any] | None:
    """What its publisher sent; None for a worker from which no events are expected."""
    if view is None or not view.worker.publishes_events:
        return None
    stats = feed.stats(view.slot)
    # Not `asdict`, which makes tuples of a Counter's keys: JSON has none.
    values = {each.name: getattr(stats, each.name) for each in fields(stats)}
    return values | {"ignored": dict(stats.ignored)}


def _trust(watch: WorkerWatch, view: WorkerView | None) -> dict[str, str] | None:
    if view is None or watch.facts is None:
        return None
    why_predicted = predicted_because(watch.facts, watch.spec.kv_events)
    return {"level": view.trust.level.value, "reason": why_predicted or view.trust.reason}


def _load(view: WorkerView | None) -> dict[str, float] | None:
    """Our own bookings; what the engine says of itself stands in `engine_gauges`."""
    if view is None:
        return None
    return {
        "num_active_requests": view.num_active_requests,
        "active_prefill_tokens": view.active_prefill_tokens,
        "active_decode_blocks": view.active_decode_blocks,
        "active_output_tokens": view.active_output_tokens,
    }


def _index(view: WorkerView | None) -> dict[str, int] | None:
    if view is None:
        return None
    return {"num_blocks": view.num_index_blocks, "num_predicted_blocks": view.num_predicted_blocks}


def _engine(watch: WorkerWatch) -> dict[str, Any] | None:
    facts = watch.facts
    if facts is None:
        return None
    return {
        "name": facts.engine,
        "version": facts.version,
        "models": [model.name for model in facts.models],
        "block_tokens": facts.block_tokens,
        "num_blocks": facts.num_blocks,
        "num_ranks": facts.num_ranks,
        "not_told": list(facts.missing),
    }
