"""Looks at the members, each in a task of its own; the core is told what they show, and the log what is news.

Who the members are is `membership`'s business, what a look asks that of `watch`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from indexer.trust import TrustLevel
from router.config import Settings
from router.core.counters import CacheTotals
from router.core.health import HealthSign
from router.core.routing import RoutingCore
from router.engines.control import CONTROLS
from router.fleet.index_warnings import IndexWarnings
from router.fleet.limits import REPROBE_SECONDS, RETRY_SECONDS
from router.fleet.member import Member
from router.fleet.membership import Membership
from router.fleet.parts import Note, fleet_notes
from router.fleet.token_parity import TokenParity
from router.fleet.watch import Sighting
from router.tasks import start_task

_logger = logging.getLogger("kvgate.fleet")


class Watching:
    """Rounds of looking, and single looks out of turn."""

    def __init__(
        self,
        core: RoutingCore,
        membership: Membership,
        settings: Settings,
        clock: Callable[[], float],
        token_parity: TokenParity,
        follow_sleep: Callable[[Member], Awaitable[None]],
    ) -> None:
        """`follow_sleep` finds out whether a member sleeps, when its metrics show that this has changed."""
        self._core = core
        self._token_parity = token_parity
        self._follow_sleep = follow_sleep
        self._membership = membership
        self._settings = settings
        self._clock = clock
        self._notes: frozenset[Note] = frozenset()
        """What was last said of the fleet as a whole."""
        self._reprobe: asyncio.Task[None] | None = None
        self._reprobe_due_at = 0.0

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """Besides those of the members."""
        return self._token_parity.tasks + ([] if self._reprobe is None else [self._reprobe])

    async def watch(self, member: Member) -> None:
        """Look again and again, until cancelled."""
        while True:
            member.wake.clear()
            await self._look_unfailingly(member)
            try:
                async with asyncio.timeout(self._pause_after(member)):
                    await member.wake.wait()
            except TimeoutError:
                pass

    async def _look_unfailingly(self, member: Member) -> None:
        """What goes wrong in one look must not be the end of looking. Said once while it stays the same."""
        try:
            await self._look(member)
            member.mishap = ""
        except Exception as error:
            if member.mishap != (mishap := repr(error)):
                member.mishap = mishap
                _logger.exception("worker %s: a look at it failed; the next one is due", member.id)
        finally:
            member.looked.set()

    async def reprobe(self, model: str) -> None:
        """Ask every member anew what it serves; callers share one round, and rounds keep their distance."""
        if self._reprobe is None:
            if self._clock() < self._reprobe_due_at:
                return
            self._reprobe = start_task(self._ask_all_anew(), f"look for model {model}")
        await asyncio.shield(self._reprobe)

    async def _ask_all_anew(self) -> None:
        try:
            known = [member for member in self._membership.members if not member.watch.error]
            for member in known:
                member.watch.doubt()
            await asyncio.gather(*(self._look_unfailingly(member) for member in known))
        finally:
            self._reprobe = None
            self._reprobe_due_at = self._clock() + REPROBE_SECONDS

    def doubt(self, member: Member) -> None:
        """Connecting failed: its ranks get no requests before it was looked at, which is done at once."""
        self._observe(member, HealthSign.CONNECT_FAILED)
        member.watch.doubt()
        member.wake.set()
        self._membership.changed()

    async def _look(self, member: Member) -> None:
        former_error, asked_at = member.watch.error, self._clock()
        sighting = await member.watch.look(asked_at)
        if sighting is Sighting.FAILED:
            self._note_failure(member, is_news=member.watch.error != former_error)
        elif sighting is Sighting.ALIVE:
            self._observe(member, HealthSign.PROBE_OK)
        else:
            self._note_identity(member, sighting, was_away=bool(former_error))
        self._note_totals(member, asked_at)
        await self._follow_sleep(member)
        self._note_ranks(member)
        self._token_parity.look(member, self._membership.members)

    def _pause_after(self, member: Member) -> float:
        if member.watch.error:
            return RETRY_SECONDS
        if member.watch.has_metrics:
            return min(self._settings.load_monitor_interval, self._settings.health_check_interval_secs)
        return self._settings.health_check_interval_secs

    def _observe(self, member: Member, sign: HealthSign) -> None:
        """Ranks share their server: they live and fail together."""
        for worker_id in member.worker_ids:
            self._core.observe_health(worker_id, sign, now=self._clock())

    def _note_failure(self, member: Member, *, is_news: bool) -> None:
        what = "does not answer yet" if member.watch.facts is None else "is not served any more"
        level = logging.WARNING if is_news else logging.DEBUG
        _logger.log(
            level, "worker %s: %s (%s); tried again in the background", member.id, what, member.watch.error
        )
        self._observe(member, HealthSign.PROBE_FAILED)
        self._membership.changed()

    def _note_identity(self, member: Member, sighting: Sighting, *, was_away: bool) -> None:
        if self._membership.member_of(member.id) is not member:
            return  # it was removed while it was asked
        self._membership.reconcile()
        restarted, line = (
            sighting is Sighting.RESTARTED,
            member.watch.describe(is_refused=self._is_refused(member)),
        )
        if restarted or line != member.described:
            level = logging.WARNING if member.watch.is_let_down else logging.INFO
            _logger.log(level, "%s%s", line, "; it has restarted" if restarted else "")
        elif was_away:
            _logger.info("worker %s: is served again", member.id)
        member.described = line
        self._note_pools()
        self._observe(member, HealthSign.RESTARTED if restarted else HealthSign.PROBE_OK)
        self._membership.changed()

    def _note_pools(self) -> None:
        """What holds of all of them, once each has said what it is: before, the others may be on their
        way."""
        members = self._membership.members
        if any(member.watch.facts is None for member in members):
            return
        notes = list(fleet_notes([rank.worker for member in members for rank in member.ranks]))
        for note in notes:
            if note not in self._notes:
                _logger.log(logging.WARNING if note.is_warning else logging.INFO, "%s", note.text)
        self._notes = frozenset(notes)

    def _is_refused(self, member: Member) -> bool:
        views = [self._core.worker(rank.worker.id) for rank in member.ranks if rank.worker.publishes_events]
        return any(view is not None and view.trust.level is TrustLevel.PREDICTED for view in views)

    def _note_totals(self, member: Member, asked_at: float) -> None:
        """What the engine says of its prefix cache, rank by rank."""
        facts = member.watch.facts
        controls = CONTROLS.get(facts.engine) if facts is not None and not member.watch.error else None
        totals = controls.totals(member.watch.metrics_text) if controls is not None else {}
        for rank in member.ranks:
            if found := totals.get(str(rank.worker.dp_rank or 0)):
                self._core.observe_cache_totals(
                    rank.worker.id, CacheTotals(*found), asked_at=asked_at, now=self._clock()
                )

    def _note_ranks(self, member: Member) -> None:
        for rank in member.ranks:
            worker_id = rank.worker.id
            view, parity = self._core.worker(worker_id), self._core.parity(worker_id)
            if not rank.worker.publishes_events or view is None or parity is None:
                continue
            self._membership.listening.adopt_layout(rank.worker)
            warnings = member.warnings.setdefault(worker_id, IndexWarnings())
            place = rank.endpoints.events if rank.endpoints else ""
            warnings.look(worker_id, view.trust, parity, place)
            warnings.look_at_messages(worker_id, self._core.feed.stats(view.slot), place)
