"""The subscriptions to KV events, one for each rank that publishes, in step with the slots of the core.

What the events show of a worker's blocks is taken over here: at once, and again at every look.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import zmq

from indexer.blocks import HashSpace
from indexer.subscription import Subscription
from indexer.warm_start import WarmStart
from policies.types import Worker, WorkerId
from router.core.routing import RoutingCore
from router.fleet.ranks import EventEndpoints, Rank

_logger = logging.getLogger("kvgate.fleet")


class Listening:
    """`on_change` is called when the blocks of a worker turned out to be others than was believed."""

    def __init__(
        self,
        core: RoutingCore,
        *,
        topic: str,
        context: zmq.Context[zmq.Socket[bytes]],
        on_change: Callable[[], None],
        warm_start: WarmStart,
    ) -> None:
        self._core = core
        self._topic = topic
        self._context = context
        self._on_change = on_change
        self._warm_start = warm_start
        self._subscriptions: dict[WorkerId, Subscription] = {}
        self._endpoints: dict[WorkerId, EventEndpoints] = {}

    def follow(self, ranks: Iterable[Rank]) -> None:
        """Listen to these and to no others, each under the slot that it has now."""
        wanted = {rank.worker.id: rank for rank in ranks if rank.worker.publishes_events}
        for worker_id, subscription in list(self._subscriptions.items()):
            rank = wanted.get(worker_id)
            place = None if rank is None else (self._core.slot_of(worker_id), rank.endpoints)
            if place != (subscription.slot, self._endpoints[worker_id]):
                subscription.stop()
                del self._subscriptions[worker_id]
        for worker_id, rank in wanted.items():
            if worker_id not in self._subscriptions and rank.endpoints is not None:
                self._subscribe(rank.worker, rank.endpoints)

    def stop(self) -> None:
        self.follow(())

    def _subscribe(self, worker: Worker, endpoints: EventEndpoints) -> None:
        slot = self._core.slot_of(worker.id)
        assert slot is not None, "the core was told first"
        subscription = self._subscriptions[worker.id] = Subscription(
            self._core.feed,
            slot,
            endpoint=endpoints.events,
            replay_endpoint=endpoints.replay,
            topic=self._topic if endpoints.topic is None else endpoints.topic,
            context=self._context,
            on_layout=lambda: self.adopt_layout(worker),
            on_refusal=lambda reason: self._core.refuse_events(worker.id, reason),
            snapshot=self._warm_start.take(worker.id),
        )
        self._endpoints[worker.id] = endpoints
        subscription.start()

    def adopt_layout(self, worker: Worker) -> None:
        """Match the worker by the blocks that its events show, and say so when it had said otherwise."""
        former = self._core.adopt_layout(worker.id)
        view = self._core.worker(worker.id)
        if former is None or view is None:
            return
        stored = _in_words(view.space)
        if worker.block_tokens is None:
            _logger.info("worker %s stores blocks of %s", worker.id, stored)
        else:
            _logger.warning(
                "worker %s stores blocks of %s, its server said %d: going by its events",
                worker.id, stored, worker.block_tokens,
            )  # fmt: skip
        self._on_change()


def _in_words(space: HashSpace) -> str:
    size = f"{space.block_tokens} tokens"
    return f"{size} that depend on the {space.lookahead_tokens} behind" if space.lookahead_tokens else size
