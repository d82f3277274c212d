"""What engines report of the requests that they have served, and what follows: for the lengths of byte
prompts, for parity, and for what the index claims.
"""

from __future__ import annotations

from router.core.counters import CacheTotals
from router.core.loads import ActiveSequences, Booking
from router.core.overlap import Beliefs
from router.core.parity import ParityChecks
from router.core.planning import Planner
from router.core.usage import CachedTokens
from router.core.workers import WorkerEntry, WorkerTable


class Reports:
    """Reads bookings and workers, and teaches what is learnt from them."""

    def __init__(
        self,
        workers: WorkerTable,
        loads: ActiveSequences,
        beliefs: Beliefs,
        parity: ParityChecks,
        planner: Planner,
    ) -> None:
        self._workers = workers
        self._loads = loads
        self._beliefs = beliefs
        self._parity = parity
        self._planner = planner

    def usage(
        self, booking: Booking, prompt_tokens: int | None, cached_tokens: int | None, now: float
    ) -> CachedTokens | None:
        """See RoutingCore.observe_usage."""
        entry = self._workers.of_slot(booking.slot)
        self._planner.observe_prompt_tokens(entry.space.base_model, booking, prompt_tokens)
        if booking.is_handed_over:
            return None  # the number is what the prefill worker had cached, or what came from there
        if cached_tokens is not None:
            entry.reports_cached_tokens = True
        if not booking.expectation.is_exact:
            return None
        if not entry.reports_cached_tokens:
            self._parity.not_reported(booking)
            return None
        reported = cached_tokens or 0  # engines that report leave the number out when it is 0
        self._compare(booking, entry, reported, now)
        return CachedTokens(booking.expectation.cached_tokens, reported)

    def cache_totals(self, entry: WorkerEntry, totals: CacheTotals, asked_at: float, now: float) -> None:
        """See RoutingCore.observe_cache_totals."""
        num_active = self._loads.num_requests(entry.slot)
        found = entry.lone.read(totals, num_active=num_active, asked_at=asked_at)
        if found is None or entry.reports_cached_tokens:
            return
        booking, cached_tokens = found
        if booking.expectation.is_exact:
            self._compare(booking, entry, cached_tokens, now)

    def _compare(self, booking: Booking, entry: WorkerEntry, reported: int, now: float) -> None:
        """Expected against reported: what was claimed too much is withdrawn, what was missed is learnt."""
        slot, expectation, block_tokens = entry.slot, booking.expectation, entry.space.block_tokens
        was_alone = booking.was_alone or entry.sole is booking
        self._parity.reported(booking, reported, was_alone=was_alone)
        if was_alone and reported < expectation.cached_tokens:
            self._beliefs.withdraw(slot, expectation, block_tokens, reported, now=now)
        if reported > expectation.exact_blocks * block_tokens and self._parity.may_learn(booking):
            self._beliefs.feed.learn(slot, expectation.chain[: reported // block_tokens])
