"""One worker under watch: what it is, whether it is alive, how loaded it says it is.

Asks and remembers, nothing more: what a sighting means for routing, and when to look next, is up to `fleet`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from router.discovery import WorkerSpec
from router.engines import (
    EngineGauges,
    ProbeFailed,
    WorkerFacts,
    WorkerSessions,
    parse_rank_gauges,
    probe,
)
from router.engines.describe import describe_worker
from router.engines.http import CallFailed, WorkerHttp
from router.engines.limits import METRICS_BYTES, SMALL_BYTES
from router.engines.metrics_text import find_samples
from router.fleet.parts import contradicts, describe_part
from router.fleet.ranks import Rank, ranks_of


class Sighting(StrEnum):
    """What one look at a worker showed."""

    IDENTIFIED = "identified"
    """It told what it is: for the first time, after an absence, or something new."""
    RESTARTED = "restarted"
    """It told what it is, and is another process than before: its cache is empty."""
    ALIVE = "alive"
    FAILED = "failed"


class WorkerWatch:
    """The worker of one `spec`. `headers` go with every call; `facts` are None until it has answered once."""

    def __init__(
        self,
        spec: WorkerSpec,
        sessions: WorkerSessions,
        *,
        headers: Mapping[str, str],
        timeout_seconds: float,
        health_seconds: float,
    ) -> None:
        """`health_seconds`: how often /health is asked besides the metrics."""
        self.spec = spec
        self.headers = headers
        self.facts: WorkerFacts | None = None
        self.ranks: tuple[Rank, ...] = ()
        """What requests can be sent to; none until it has answered once."""
        self.gauges = EngineGauges()
        self.rank_gauges: Mapping[str, EngineGauges] = {}
        """By the rank's number as the engine spells it."""
        self.metrics_text = b""
        self.error = "not probed yet"
        """Why it can't be served now, in words; "" when it can."""
        self._http = WorkerHttp(sessions, spec.url, headers, timeout_seconds=timeout_seconds)
        self._health_seconds = health_seconds
        self._health_due_at = 0.0
        self._is_doubted = False

    @property
    def has_metrics(self) -> bool:
        return self.facts is not None and self.facts.engine != "generic"

    def doubt(self) -> None:
        """Identify it anew at the next look: it may be another process by now, or serve other models."""
        self._is_doubted = True

    def describe(self, *, is_refused: bool) -> str:
        """One line: what it is and how far its index can be believed. `is_refused`: an event endpoint of its
        can't be opened."""
        assert self.facts is not None
        index = _describe_index(self.ranks, self.spec, is_refused=is_refused)
        return describe_worker(
            self.spec.id, self.facts, index, describe_part(self.spec, self.ranks[0].worker)
        )

    @property
    def is_let_down(self) -> bool:
        """Its events are asked for, and it is an engine that sends some, but they can't be used; or it does
        another part of requests than it was configured for."""
        is_asked = self.spec.kv_events is not None and self.has_metrics
        return any(
            (is_asked and rank.why_predicted) or contradicts(self.spec, rank.worker) for rank in self.ranks
        )

    def gauges_of(self, rank: int | None) -> EngineGauges:
        """Of one data-parallel rank, or of all that stand behind one worker."""
        return self.gauges if rank is None else self.rank_gauges.get(str(rank), EngineGauges())

    async def look(self, now: float) -> Sighting:
        """Ask the worker; never raises for what it does."""
        try:
            if self.facts is None or self.error or self._is_doubted:
                return await self.identify(now)
            return await self._check(now)
        except (ProbeFailed, CallFailed) as error:
            self.error = str(error)
            self._read_gauges(b"")
            return Sighting.FAILED

    async def identify(self, now: float) -> Sighting:
        """Ask what it is. Raises ProbeFailed."""
        known, was_away = self.facts, bool(self.error)
        self.facts = await probe(self._http)
        self.ranks = ranks_of(self.spec, self.facts)
        self.error = ""
        self._is_doubted = False
        self._health_due_at = now + self._health_seconds
        if known is not None and _is_restarted(known, self.facts, was_away=was_away):
            return Sighting.RESTARTED
        return Sighting.IDENTIFIED

    async def _check(self, now: float) -> Sighting:
        if now >= self._health_due_at:
            self._health_due_at = now + self._health_seconds
            await self._ask("/health", SMALL_BYTES)
        if self.has_metrics:
            self.metrics_text = await self._ask("/metrics", METRICS_BYTES)
            self._read_gauges(self.metrics_text)
            if self._is_another_process():
                return await self.identify(now)
        return Sighting.ALIVE

    def _read_gauges(self, text: bytes) -> None:
        self.rank_gauges = parse_rank_gauges(text)
        self.gauges = EngineGauges.over(self.rank_gauges.values())

    async def _ask(self, path: str, max_bytes: int) -> bytes:
        answer = await self._http.get(path, max_bytes)
        if answer.status >= 500:
            raise ProbeFailed(f"{path} answered {answer.status}")
        return answer.body if answer.is_success else b""

    def _is_another_process(self) -> bool:
        assert self.facts is not None
        started = [value for _, value in find_samples(self.metrics_text, b"process_start_time_seconds")]
        return bool(started) and self.facts.start_time not in (None, started[0])


def _is_restarted(known: WorkerFacts, facts: WorkerFacts, *, was_away: bool) -> bool:
    """By its start time. Where it tells none (SGLang, others) an absence is taken for a restart: to forget
    what it holds costs some hits, to believe in an empty cache costs balance."""
    if known.start_time is None or facts.start_time is None:
        return was_away
    return facts.start_time != known.start_time


def _describe_index(ranks: Sequence[Rank], spec: WorkerSpec, *, is_refused: bool) -> str:
    first, last = ranks[0], ranks[-1]
    if first.why_predicted or first.endpoints is None or last.endpoints is None:
        return f"index predicted: {first.why_predicted}"
    place = first.endpoints.events
    if first is not last:
        place += f" to {last.endpoints.events}"
    if is_refused:
        return f"index predicted until {place} can be opened"
    return f"index exact, from {place}" + (" as it announces" if spec.kv_events is None else "")
