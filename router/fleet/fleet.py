"""The fleet: one watch and at most one event subscription for each worker; the core is told what they see.

Discovery yields sets, watches yield sightings, subscriptions yield events; here they meet the core.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import zmq

from indexer.trust import Trust, TrustLevel
from policies.types import Worker, WorkerId
from router.config import Settings, WorkerConfig
from router.core.health import HealthSign
from router.core.routing import RoutingCore
from router.discovery import DiscoverySource, WorkerSpec, expand_worker
from router.engines import WorkerSessions, merge_metrics
from router.fleet.limits import REPROBE_SECONDS, RETRY_SECONDS
from router.fleet.rows import worker_row
from router.fleet.subscription import Subscription
from router.fleet.watch import Sighting, WorkerWatch
from router.tasks import start_task

_logger = logging.getLogger("kvgate.fleet")


@dataclass(slots=True, eq=False)
class Member:
    """One worker of the fleet, whether or not it has answered yet."""

    watch: WorkerWatch
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    subscription: Subscription | None = None
    looked: asyncio.Event = field(default_factory=asyncio.Event)
    """It was asked at least once."""
    described: str = ""
    """Its line as last logged."""
    doubt: Trust | None = None
    """Why its index was not exact at the last look."""
    warned: bool = False

    @property
    def id(self) -> WorkerId:
        return self.watch.spec.id


class Fleet:
    """What the proxy and the admin port ask of the workers around the core."""

    def __init__(
        self,
        *,
        core: RoutingCore,
        settings: Settings,
        sessions: WorkerSessions,
        context: zmq.Context[zmq.Socket[bytes]],
        clock: Callable[[], float],
    ) -> None:
        self.core = core
        self.is_closing = False
        self._settings = settings
        self._sessions = sessions
        self._context = context
        self._clock = clock
        self._members: dict[WorkerId, Member] = {}
        self._listeners: list[Callable[[], None]] = []
        self._discovery: asyncio.Task[None] | None = None
        self._reprobe: asyncio.Task[None] | None = None
        self._reprobe_due_at = 0.0
        self._num_added = 0

    @property
    def members(self) -> Sequence[Member]:
        return tuple(self._members.values())

    def on_change(self, listener: Callable[[], None]) -> None:
        """`listener` is called whenever a worker joined, left, changed, or is healthy or not."""
        self._listeners.append(listener)

    # Start and end

    def start(self, source: DiscoverySource) -> None:
        """Follow a source. Serving does not wait for workers: they join as they answer."""
        self._discovery = start_task(self._follow(source), "discovery")

    async def stop(self) -> None:
        """Ask and hear nothing more."""
        tasks = [task for task in (self._discovery, self._reprobe) if task is not None]
        tasks += [self._dismiss(member) for member in list(self._members.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, source: DiscoverySource) -> None:
        async for specs in source.watch():
            self._set(specs)

    def _set(self, specs: Sequence[WorkerSpec]) -> None:
        wanted = {spec.id: spec for spec in specs}
        for member in list(self._members.values()):
            if wanted.get(member.id) != member.watch.spec:
                self._dismiss(member).cancel()
        for spec in wanted.values():
            if spec.id not in self._members:
                self._enlist(spec)
        self._num_added = max(self._num_added, len(self._members))
        self._reconcile()

    def _enlist(self, spec: WorkerSpec) -> Member:
        watch = WorkerWatch(
            spec,
            self._sessions,
            headers={"authorization": f"Bearer {spec.api_key}"} if spec.api_key else {},
            timeout_seconds=self._settings.health_check_timeout_secs,
            health_seconds=self._settings.health_check_interval_secs,
        )
        member = self._members[spec.id] = Member(watch)
        member.task = start_task(self._watch(member), f"watch {spec.id}")
        return member

    def _dismiss(self, member: Member) -> asyncio.Task[None]:
        """The member is no longer of the fleet; its task is returned, to be cancelled."""
        del self._members[member.id]
        member.looked.set()  # whoever waits for the first look waits no longer
        if member.subscription is not None:
            member.subscription.stop()
        assert member.task is not None
        return member.task

    # Watching

    async def _watch(self, member: Member) -> None:
        while True:
            member.wake.clear()
            await self._look(member)
            try:
                async with asyncio.timeout(self._pause_after(member)):
                    await member.wake.wait()
            except TimeoutError:
                pass

    async def _look(self, member: Member) -> None:
        former_error = member.watch.error
        sighting = await member.watch.look(self._clock())
        if sighting is Sighting.FAILED:
            self._note_failure(member, is_news=member.watch.error != former_error)
        elif sighting is Sighting.ALIVE:
            self.core.observe_health(member.id, HealthSign.PROBE_OK, now=self._clock())
        else:
            self._note_identity(member, sighting)
        self._note_trust(member)
        member.looked.set()

    def _pause_after(self, member: Member) -> float:
        if member.watch.error:
            return RETRY_SECONDS
        if member.watch.has_metrics:
            return min(self._settings.load_monitor_interval, self._settings.health_check_interval_secs)
        return self._settings.health_check_interval_secs

    def _note_failure(self, member: Member, *, is_news: bool) -> None:
        what = "does not answer yet" if member.watch.facts is None else "is not served any more"
        level = logging.WARNING if is_news else logging.DEBUG
        _logger.log(
            level, "worker %s: %s (%s); tried again in the background", member.id, what, member.watch.error
        )
        self.core.observe_health(member.id, HealthSign.PROBE_FAILED, now=self._clock())
        self._changed()

    def _note_identity(self, member: Member, sighting: Sighting) -> None:
        if self._members.get(member.id) is not member:
            return  # it was removed while it was asked
        restarted, line = sighting is Sighting.RESTARTED, member.watch.describe()
        if restarted or line != member.described:
            _logger.info("%s%s", line, "; it has restarted" if restarted else "")
        member.described = line
        self._reconcile()
        sign = HealthSign.RESTARTED if restarted else HealthSign.PROBE_OK
        self.core.observe_health(member.id, sign, now=self._clock())
        self._changed()

    def _note_trust(self, member: Member) -> None:
        """A worker whose index stays inexact from one look to the next costs hits: say so, once, and say when
        it is mended."""
        view = self.core.worker(member.id)
        if view is None or not view.worker.publishes_events:
            return
        trust = view.trust
        is_exact = trust.level is TrustLevel.EXACT
        if is_exact and member.warned:
            _logger.info("worker %s: its index is exact again", member.id)
        elif not is_exact and trust == member.doubt and not member.warned:
            _logger.warning("worker %s: its index is %s: %s", member.id, trust.level.value, trust.reason)
        member.warned = not is_exact and (member.warned or trust == member.doubt)
        member.doubt = None if is_exact else trust

    def _reconcile(self) -> None:
        workers = [worker for member in self.members if (worker := member.watch.worker) is not None]
        self.core.reconcile(workers, now=self._clock())
        for member in self.members:
            self._subscribe(member)
        self._changed()

    def _subscribe(self, member: Member) -> None:
        """Listen to its events under the slot that it has now."""
        slot, worker = self.core.slot_of(member.id), member.watch.worker
        listens = slot is not None and worker is not None and worker.publishes_events
        if member.subscription is not None and (not listens or member.subscription.slot != slot):
            member.subscription.stop()
            member.subscription = None
        endpoint = member.watch.spec.kv_events
        if listens and slot is not None and endpoint is not None and member.subscription is None:
            member.subscription = Subscription(
                self.core.feed,
                slot,
                endpoint=endpoint,
                replay_endpoint=member.watch.spec.kv_replay,
                topic=self._settings.kv_topic,
                context=self._context,
            )
            member.subscription.start()

    def _changed(self) -> None:
        for listener in self._listeners:
            listener()

    # What the proxy asks

    def key_of(self, worker: Worker) -> str | None:
        """The API key to show to that worker, if there is one."""
        member = self._members.get(worker.id)
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
        """Whether at least one worker is usable, and the gateway is not draining."""
        return not self.is_closing and any(view.is_up for view in self.core.workers())

    def suspect(self, worker_id: WorkerId) -> None:
        """Connecting failed: look at it at once."""
        if member := self._members.get(worker_id):
            member.watch.doubt()
            member.wake.set()
        self._changed()

    async def reprobe(self, model: str) -> None:
        """Ask every worker anew what it serves; callers share one round, and rounds keep their distance."""
        if self._reprobe is None:
            if self._clock() < self._reprobe_due_at:
                return
            self._reprobe = start_task(self._ask_all_anew(), f"look for model {model}")
        await asyncio.shield(self._reprobe)

    async def _ask_all_anew(self) -> None:
        try:
            known = [member for member in self.members if not member.watch.error]
            for member in known:
                member.watch.doubt()
            await asyncio.gather(*(self._look(member) for member in known))
        finally:
            self._reprobe = None
            self._reprobe_due_at = self._clock() + REPROBE_SECONDS

    # What the admin port asks

    async def add_worker(self, url: str, **options: str) -> WorkerId:
        """One more worker, looked at before this returns. `options`: further fields of WorkerConfig.

        It need not have answered: then it is tried again in the background. Raises ValueError that says what
        can't be added.
        """
        entry = WorkerConfig(url=url, **options)
        spec, mistakes = expand_worker(entry, self._settings.fleet_defaults, index=self._num_added)
        if spec is None:
            raise ValueError("; ".join(f"{key}: {what}" for key, what in mistakes))
        if clash := next((m for m in self.members if spec.id == m.id or spec.url == m.watch.spec.url), None):
            raise ValueError(f"{clash.watch.spec.url} is a worker already ({clash.id})")
        self._num_added += 1
        member = self._enlist(spec)
        await member.looked.wait()
        return member.id

    async def remove_worker(self, worker_id: WorkerId) -> None:
        """With its index and bookings; no effect for a worker that has left. Its streams may end."""
        if member := self._members.get(worker_id):
            self._dismiss(member).cancel()
            self._reconcile()

    def views(self) -> list[dict[str, Any]]:
        """A row for each worker, pending ones included."""
        return [
            worker_row(member.watch, self.core.worker(member.id), self.core.feed) for member in self.members
        ]

    async def engine_metrics(self) -> str:
        """The workers' own metrics as last read, as one Prometheus text with a `worker` label."""
        texts = {member.id: member.watch.metrics_text for member in self.members}
        return await merge_metrics(
            {worker_id: text.decode("utf-8", "replace") for worker_id, text in texts.items()}
        )
