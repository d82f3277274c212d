"""Orders to a worker's engine about its cache, and what the core must know of them at once.

An engine tells of a reset in its events, but only with its next step: until then an idle worker would be
believed to hold what it has dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from urllib.parse import urlencode

from router.core.routing import RoutingCore
from router.engines import WorkerSessions
from router.engines.control import CONTROLS, Controls, Order, empties_cache, refusal_in, says_that_it_sleeps
from router.engines.http import Answer, CallFailed, WorkerHttp
from router.engines.limits import SMALL_BYTES
from router.errors import BadRequest, Refused, WorkerUnavailable
from router.fleet.limits import CONTROL_SECONDS
from router.fleet.member import Member

_logger = logging.getLogger("kvgate.fleet")


class EngineControls:
    """Gives orders; the ranks behind one URL share its engine's answer."""

    def __init__(self, core: RoutingCore, sessions: WorkerSessions, clock: Callable[[], float]) -> None:
        self._core = core
        self._sessions = sessions
        self._clock = clock

    async def give(self, member: Member, order: Order, query: Mapping[str, str]) -> None:
        """Returns once the engine has done it and the core knows.

        Raises Refused when the engine would not, WorkerUnavailable when it does not answer, BadRequest for
        what its kind cannot be told.
        """
        controls = _controls_of(member, query)
        was_asleep = {worker_id: self._is_asleep(worker_id) for worker_id in member.worker_ids}
        if order is Order.SLEEP:
            self._set_asleep(member, True)  # what is sent from now on would be refused or would keep it awake
        try:
            answer = await self._post(member, controls, order, query)
            if refusal := refusal_in(answer):
                hint = f"; {controls.hint}" if answer.status == 404 else ""
                raise Refused(f"Worker {member.id!r} did not carry out {order.value}: {refusal}{hint}")
        except (Refused, WorkerUnavailable):
            for worker_id, asleep in was_asleep.items():
                self._core.set_asleep(worker_id, asleep, now=self._clock())
            raise
        if empties_cache(order, query):
            for worker_id in member.worker_ids:
                self._core.cache_emptied(worker_id)
        if order is Order.WAKE:
            self._set_asleep(member, await self._still_sleeps(member, controls))
        _logger.info("worker %s: %s was carried out", member.id, order.value)

    async def _post(
        self, member: Member, controls: Controls, order: Order, query: Mapping[str, str]
    ) -> Answer:
        path = controls.paths[order.value] + (f"?{urlencode(query)}" if query else "")
        try:
            return await self._http(member).post_json(path, b"{}", SMALL_BYTES)
        except CallFailed as error:
            raise WorkerUnavailable(f"Worker {member.id!r} did not answer {order.value}: {error}") from None

    async def _still_sleeps(self, member: Member, controls: Controls) -> bool:
        """vLLM can be woken in parts."""
        if not controls.sleep_path:
            return False
        try:
            answer = await self._http(member).get(controls.sleep_path, SMALL_BYTES)
        except CallFailed:
            return False
        return says_that_it_sleeps(answer) or False

    async def follow_sleep(self, member: Member) -> None:
        """Orders are given elsewhere too: a change that the engine's metrics show is taken over."""
        facts = member.watch.facts
        controls = CONTROLS.get(facts.engine) if facts is not None else None
        sleeps = controls.sleeps(member.watch.metrics_text) if controls is not None else None
        slept, member.sleep_gauge = member.sleep_gauge, sleeps
        if controls is None or sleeps is None or sleeps == bool(slept):
            return
        if not sleeps:
            self._set_asleep(member, await self._still_sleeps(member, controls))
        elif not self._is_asleep(member.worker_ids[0]):
            self._set_asleep(member, True)
            for worker_id in member.worker_ids:
                self._core.cache_emptied(worker_id)

    def _http(self, member: Member) -> WorkerHttp:
        watch = member.watch
        return WorkerHttp(self._sessions, watch.spec.url, watch.headers, timeout_seconds=CONTROL_SECONDS)

    def _is_asleep(self, worker_id: str) -> bool:
        view = self._core.worker(worker_id)
        return view is not None and view.asleep

    def _set_asleep(self, member: Member, asleep: bool) -> None:
        for worker_id in member.worker_ids:
            self._core.set_asleep(worker_id, asleep, now=self._clock())


def _controls_of(member: Member, query: Mapping[str, str]) -> Controls:
    facts = member.watch.facts
    if facts is None:
        raise BadRequest(f"Worker {member.id!r} has not answered yet: it takes no orders", param="id")
    controls = CONTROLS.get(facts.engine)
    if controls is None:
        raise BadRequest(
            f"Worker {member.id!r} is of a kind ({facts.engine}) that takes no orders", param="id"
        )
    if query and not controls.takes_query:
        raise BadRequest(
            f"Orders to {facts.engine} have no parameters, not {', '.join(query)}", param="query"
        )
    return controls
