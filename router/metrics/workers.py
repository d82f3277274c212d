"""What the decision core knows of each worker, as metrics: read when somebody asks, stored nowhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from indexer.feed import FeedStats, KvFeed
from indexer.parity import Check, ParityState
from indexer.trust import Trust, TrustLevel
from policies.types import Slot, WorkerId
from router.core.routing import RoutingCore
from router.core.workers import WorkerView
from router.metrics import table
from router.metrics.series import Labels, Reading

_PER_WORKER: dict[table.Metric, Callable[[WorkerView], float]] = {
    table.INDEX_BLOCKS: lambda view: view.num_index_blocks,
    table.PREDICTED_BLOCKS: lambda view: view.num_predicted_blocks,
    table.ACTIVE_PREFILL_TOKENS: lambda view: view.active_prefill_tokens,
    table.ACTIVE_DECODE_BLOCKS: lambda view: view.active_decode_blocks,
}

_PER_PUBLISHER: dict[table.Metric, Callable[[FeedStats], float]] = {
    table.KV_EVENTS: lambda stats: stats.num_events,
    table.KV_EVENT_GAPS: lambda stats: stats.num_gaps,
    table.KV_REPLAYS: lambda stats: stats.num_replays,
    table.KV_RESTARTS: lambda stats: stats.num_restarts,
    table.KV_ORPHANS: lambda stats: stats.num_orphans,
    table.KV_OVERREPORTS: lambda stats: stats.num_overreports,
    table.KV_LEARNT_BLOCKS: lambda stats: stats.num_learnt_blocks,
    table.KV_DROPPED: lambda stats: stats.num_blocks_dropped,
}


def worker_readings(
    core: RoutingCore, views: Sequence[WorkerView], absent: Sequence[WorkerId]
) -> Iterator[Reading]:
    """The metrics of `table.READ`; those of KV events hold only workers that publish them. Workers that are
    `absent` from the core are not up, and nothing else is known of them."""
    policy = core.policy.name
    yield table.IN_FLIGHT, [((view.worker.id, policy), float(view.num_active_requests)) for view in views]
    up = [((view.worker.id,), float(view.is_up)) for view in views]
    yield table.WORKER_UP, up + [((worker_id,), 0.0) for worker_id in absent]
    for metric, value_of in _PER_WORKER.items():
        yield metric, [((view.worker.id,), float(value_of(view))) for view in views]
    yield table.WORKER_TRUST, list(_trust({view.worker.id: view.trust for view in views}))
    publishers = {view.worker.id: view.slot for view in views if view.worker.publishes_events}
    yield from _event_readings(core.feed, publishers)
    states = {view.worker.id: state for view in views if (state := core.parity(view.worker.id))}
    yield table.PARITY_CHECKS, list(_parity_checks(states))
    yield table.PARITY_DIFFERS, list(_parity_differs(states))


def publisher_readings(feed: KvFeed, slots: Mapping[WorkerId, Slot]) -> Iterator[Reading]:
    """The metrics of an index alone, which sends no requests."""
    blocks = [((worker_id,), float(feed.stats(slot).num_blocks)) for worker_id, slot in slots.items()]
    yield table.INDEX_BLOCKS, blocks
    yield table.WORKER_TRUST, list(_trust({worker_id: feed.trust(slot) for worker_id, slot in slots.items()}))
    yield from _event_readings(feed, slots)


def _event_readings(feed: KvFeed, slots: Mapping[WorkerId, Slot]) -> Iterator[Reading]:
    yield table.INDEX_BYTES, [((), float(feed.num_bytes))]
    stats = {worker_id: feed.stats(slot) for worker_id, slot in slots.items()}
    for metric, count_of in _PER_PUBLISHER.items():
        yield metric, [((worker_id,), float(count_of(each))) for worker_id, each in stats.items()]
    yield table.KV_EVENTS_IGNORED, list(_ignored(stats))


def _parity_checks(states: Mapping[WorkerId, ParityState]) -> Iterator[tuple[Labels, float]]:
    for worker_id, state in states.items():
        for (check, outcome), count in state.counts.items():
            yield (worker_id, check.value, outcome.value), float(count)


def _parity_differs(states: Mapping[WorkerId, ParityState]) -> Iterator[tuple[Labels, float]]:
    for worker_id, state in states.items():
        for check in Check:
            yield (worker_id, check.value), float(bool(state.worst(check)))


def _trust(trust: Mapping[WorkerId, Trust]) -> Iterator[tuple[Labels, float]]:
    for worker_id, each in trust.items():
        for level in TrustLevel:
            yield (worker_id, level.value), float(each.level is level)


def _ignored(stats: Mapping[str, FeedStats]) -> Iterator[tuple[Labels, float]]:
    for worker_id, each in stats.items():
        for reason, count in each.ignored.items():
            yield (worker_id, reason), float(count)
