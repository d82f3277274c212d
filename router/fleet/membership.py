"""Who belongs to the fleet: URLs come and go, with all that is done for them, and the core is told.

How members are looked at is in `watching`, what their ranks are in `ranks`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from indexer.warm_start import WarmStart
from policies.types import WorkerId
from router.config import Settings, WorkerConfig
from router.core.routing import RoutingCore
from router.discovery import WorkerSpec, WrongWorker, clashes, expand_worker
from router.engines import WorkerSessions
from router.fleet.listening import Listening
from router.fleet.member import Member
from router.fleet.ranks import Rank, without_shared_endpoints
from router.fleet.watch import WorkerWatch

_logger = logging.getLogger("kvgate.fleet")


class Membership:
    """`watch` starts looking at a new member, for as long as the task lives that it returns."""

    def __init__(
        self,
        *,
        core: RoutingCore,
        settings: Settings,
        sessions: WorkerSessions,
        context: zmq.Context[zmq.Socket[bytes]],
        clock: Callable[[], float],
        watch: Callable[[Member], asyncio.Task[None]],
        warm_start: WarmStart,
    ) -> None:
        self._core = core
        self._settings = settings
        self._sessions = sessions
        self._clock = clock
        self._watch = watch
        self._members: dict[WorkerId, Member] = {}
        self._by_worker: dict[WorkerId, Member] = {}
        self._listeners: list[Callable[[], None]] = []
        self._num_added = 0
        self.listening = Listening(
            core,
            topic=settings.kv_topic,
            context=context,
            on_change=self.changed,
            warm_start=warm_start,
        )

    @property
    def members(self) -> Sequence[Member]:
        return tuple(self._members.values())

    def member_of(self, worker_id: WorkerId) -> Member | None:
        """Behind whose URL that worker is."""
        return self._by_worker.get(worker_id) or self._members.get(worker_id)

    def on_change(self, listener: Callable[[], None]) -> None:
        """`listener` is called whenever a worker joined, left, changed, or is healthy or not."""
        self._listeners.append(listener)

    def changed(self) -> None:
        for listener in self._listeners:
            listener()

    # Coming and going

    def follow(self, specs: Sequence[WorkerSpec]) -> None:
        """Make the members exactly these."""
        wanted = {spec.id: spec for spec in specs}
        for member in self.members:
            if wanted.get(member.id) != member.watch.spec:
                self._dismiss(member).cancel()
        for spec in wanted.values():
            if spec.id not in self._members:
                self._enlist(spec)
        self._num_added = max(self._num_added, len(self._members))
        self.reconcile()

    def add(self, url: str, **options: Any) -> Member:  # noqa: ANN401 - fields of WorkerConfig
        """One more. `options`: further fields of WorkerConfig. Raises WrongWorker: what can't be added."""
        entry = WorkerConfig(url=url, **options)
        spec, mistakes = expand_worker(entry, self._settings.fleet_defaults, index=self._num_added)
        if spec is None:
            raise WrongWorker(mistakes)
        if clash := next((m for m in self.members if spec.id == m.id or spec.url == m.watch.spec.url), None):
            field = "url" if spec.url == clash.watch.spec.url else "name"
            raise WrongWorker([(field, f"{clash.watch.spec.url} is a worker already ({clash.id})")])
        if shared := clashes(spec, (member.watch.spec for member in self.members)):
            raise WrongWorker(shared)
        self._num_added += 1
        return self._enlist(spec)

    def remove(self, worker_id: WorkerId) -> None:
        """A member by its own id, or one rank of it; the last rank takes its member along."""
        member = self.member_of(worker_id)
        if member is None:
            return
        member.dismissed.add(worker_id)
        if worker_id == member.id or member.dismissed.issuperset(member.worker_ids):
            self._dismiss(member).cancel()
        self.reconcile()

    def dismiss_all(self) -> list[asyncio.Task[None]]:
        """Nobody is heard any more; the tasks are to be cancelled."""
        tasks = [self._dismiss(member) for member in self.members]
        self.listening.stop()
        return tasks

    def _enlist(self, spec: WorkerSpec) -> Member:
        watch = WorkerWatch(
            spec,
            self._sessions,
            headers={"authorization": f"Bearer {spec.api_key}"} if spec.api_key else {},
            timeout_seconds=self._settings.health_check_timeout_secs,
            health_seconds=self._settings.health_check_interval_secs,
        )
        member = self._members[spec.id] = Member(watch)
        member.task = self._watch(member)
        return member

    def _dismiss(self, member: Member) -> asyncio.Task[None]:
        """The member is no longer of the fleet; its task is returned, to be cancelled."""
        del self._members[member.id]
        member.looked.set()  # whoever waits for the first look waits no longer
        assert member.task is not None
        return member.task

    # In step with the core

    def reconcile(self) -> None:
        """Tell the core which workers there are, and listen to them."""
        ranks = without_shared_endpoints([rank for member in self.members for rank in _served(member)])
        self._core.reconcile([rank.worker for rank in ranks], now=self._clock())
        by_id = {rank.worker.id: rank for rank in ranks}
        self._by_worker.clear()
        for member in self.members:
            member.ranks, former = [by_id[rank.worker.id] for rank in _served(member)], member.ranks
            _warn_of_shared_endpoints(member, former)
            self._by_worker.update(dict.fromkeys((rank.worker.id for rank in member.ranks), member))
        self.listening.follow(ranks)
        self.changed()


def _warn_of_shared_endpoints(member: Member, former: Sequence[Rank]) -> None:
    for rank in member.ranks:
        if rank not in member.watch.ranks and rank not in former:
            _logger.warning("worker %s: index predicted: %s", rank.worker.id, rank.why_predicted)


def _served(member: Member) -> list[Rank]:
    return [rank for rank in member.watch.ranks if rank.worker.id not in member.dismissed]
