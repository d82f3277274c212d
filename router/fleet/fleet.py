"""The fleet: what the proxy and the admin port ask of the workers around the core.

Discovery yields sets, watches yield sightings, subscriptions yield events. Members are kept in `membership`,
looked at in `watching`, heard in `listening`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import zmq

from indexer.blocks import BlockHash
from indexer.events import Tier
from indexer.warm_start import WarmStart
from policies.types import Slot, Worker, WorkerId
from router.config import Settings
from router.core.routing import RoutingCore
from router.discovery import DiscoverySource
from router.engines import WorkerSessions, merge_metrics
from router.engines.control import Order
from router.fleet.controls import EngineControls
from router.fleet.member import Member
from router.fleet.membership import Membership
from router.fleet.rows import member_rows
from router.fleet.token_parity import TokenParity
from router.fleet.watching import Watching
from router.tasks import start_task


class Fleet:
    """All of it as one object, with its start and its end."""

    def __init__(
        self,
        *,
        core: RoutingCore,
        settings: Settings,
        sessions: WorkerSessions,
        context: zmq.Context[zmq.Socket[bytes]],
        clock: Callable[[], float],
        warm_start: WarmStart | None = None,
    ) -> None:
        """`warm_start`: what the workers' indexes are begun with."""
        self.core = core
        self.is_closing = False
        self._membership = Membership(
            core=core,
            settings=settings,
            sessions=sessions,
            context=context,
            clock=clock,
            watch=lambda member: start_task(self._watching.watch(member), f"watch {member.id}"),
            warm_start=warm_start or WarmStart(),
        )
        self._controls = EngineControls(core, sessions, clock)
        self._token_parity = TokenParity(core, sessions, clock)
        self._watching = Watching(
            core, self._membership, settings, clock, self._token_parity, self._controls.follow_sleep
        )
        self._discovery: asyncio.Task[None] | None = None

    @property
    def members(self) -> Sequence[Member]:
        return self._membership.members

    def worker_ids(self) -> list[WorkerId]:
        """Of all workers, those that have not answered yet included."""
        return [worker_id for member in self.members for worker_id in member.worker_ids]

    def on_change(self, listener: Callable[[], None]) -> None:
        """`listener` is called whenever a worker joined, left, changed, or is healthy or not."""
        self._membership.on_change(listener)

    def compare_tokens_with(self, source: object) -> None:
        """The workers' tokens are compared with those of this token source from now on."""
        self._token_parity.source = source

    # Start and end

    def start(self, source: DiscoverySource) -> None:
        """Follow a source. Serving does not wait for workers: they join as they answer."""
        self._discovery = start_task(self._follow(source), "discovery")

    async def _follow(self, source: DiscoverySource) -> None:
        async for specs in source.watch():
            self._membership.follow(specs)

    async def stop(self) -> None:
        """Ask and hear nothing more."""
        tasks = self._watching.tasks + self._membership.dismiss_all()
        if self._discovery is not None:
            tasks.append(self._discovery)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # What the proxy asks

    def key_of(self, worker: Worker) -> str | None:
        """The API key to show to that worker, if there is one."""
        member = self._membership.member_of(worker.id)
        return member.watch.spec.api_key if member is not None else None

    def model_entries(self) -> list[dict[str, Any]]:
        """The union of the workers' `/v1/models`, by id, in the order of the workers."""
        entries: dict[str, dict[str, Any]] = {}
        for member in self.members:
            for entry in member.watch.facts.model_entries if member.watch.facts is not None else ():
                entries.setdefault(entry["id"], dict(entry))
        return list(entries.values())

    def has_pending(self) -> bool:
        """Whether a configured worker has not answered yet."""
        return any(member.watch.facts is None for member in self.members)

    def is_ready(self) -> bool:
        """Whether some request can be answered, and the gateway is not draining."""
        return not self.is_closing and self.core.can_serve()

    def suspect(self, worker_id: WorkerId) -> None:
        """Connecting failed: so it would for all ranks behind that URL. It is looked at at once."""
        if member := self._membership.member_of(worker_id):
            self._watching.doubt(member)

    async def reprobe(self, model: str) -> None:
        """Ask every worker anew what it serves; callers share one round, and rounds keep their distance."""
        await self._watching.reprobe(model)

    # What the admin port asks

    def snapshot(self) -> Iterator[bytes]:
        """What the workers' events have told, in pieces."""
        return self.core.feed.snapshot(self._names())

    def dump(self) -> Iterator[list[tuple[Tier, BlockHash, list[str]]]]:
        """Every block with its holders; see KvFeed.dump."""
        return self.core.feed.dump(self._names())

    def _names(self) -> dict[Slot, WorkerId]:
        return {view.slot: view.worker.id for view in self.core.workers()}

    async def add_worker(self, url: str, **options: str) -> WorkerId:
        """One more URL, looked at before this returns. `options`: further fields of WorkerConfig.

        It need not have answered: then it is tried again in the background. Raises WrongWorker that says what
        can't be added.
        """
        member = self._membership.add(url, **options)
        await member.looked.wait()
        return member.id

    async def remove_worker(self, worker_id: WorkerId) -> None:
        """All ranks of a URL by its id, or one of them, with index and bookings; no effect for what has left.
        Its streams may end."""
        self._membership.remove(worker_id)

    async def give_order(self, worker_id: WorkerId, order: Order, query: Mapping[str, str]) -> None:
        """Has the engine behind a worker's URL do it, for all of its ranks. Raises RouterError."""
        if member := self._membership.member_of(worker_id):
            await self._controls.give(member, order, query)

    def views(self) -> list[dict[str, Any]]:
        """A row for each worker, pending ones included."""
        return [row for member in self.members for row in member_rows(member, self.core)]

    async def engine_metrics(self) -> str:
        """The workers' own metrics as last read, as one Prometheus text with a `worker` label: the id of the
        URL, whose ranks its own labels tell apart."""
        texts = {member.id: member.watch.metrics_text for member in self.members}
        return await merge_metrics(
            {worker_id: text.decode("utf-8", "replace") for worker_id, text in texts.items()}
        )
