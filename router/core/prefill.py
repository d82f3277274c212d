"""When a booked prefill is over though no first token shows it: how fast workers prefill, and what is due
when.

A streamed request releases its prefill with its first token. One that is not streamed shows nothing until its
whole answer is there, so its release is foretold from the speed that streamed requests of the worker showed.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count

from router.core.limits import (
    PREFILL_SPEED_MEMORY,
    PRIOR_PREFILL_SECONDS,
    PRIOR_PREFILL_TOKENS_PER_SECOND,
    RELEASES_SLACK,
)
from router.core.loads import ActiveSequences, Booking


class PrefillSpeed:
    """One worker's tokens per second: all observed work over all observed time, both fading with each sample.

    A ratio of sums, so that a short prompt, which mostly measures overhead, weighs little.
    """

    def __init__(self) -> None:
        self._seconds = PRIOR_PREFILL_SECONDS
        self._tokens = PRIOR_PREFILL_TOKENS_PER_SECOND * PRIOR_PREFILL_SECONDS

    def observe(self, tokens: int, seconds: float) -> None:
        """`tokens` (those waiting before it included) were prefilled in `seconds`."""
        if tokens <= 0 or seconds <= 0:
            return
        self._tokens = self._tokens * PREFILL_SPEED_MEMORY + tokens
        self._seconds = self._seconds * PREFILL_SPEED_MEMORY + seconds

    def seconds_for(self, tokens: int) -> float:
        return tokens * self._seconds / self._tokens


class PrefillReleases:
    """Bookings whose prefill is taken to be over at a foretold time."""

    def __init__(self, loads: ActiveSequences) -> None:
        self._loads = loads
        self._due: list[tuple[float, int, Booking]] = []
        self._order = count()

    def schedule(self, booking: Booking, at: float) -> None:
        heappush(self._due, (at, next(self._order), booking))
        if len(self._due) > 2 * len(self._loads) + RELEASES_SLACK:
            self._due = [entry for entry in self._due if self._loads.is_active(entry[2])]
            heapify(self._due)

    def release_due(self, now: float, released: Callable[[Booking, float], None]) -> float | None:
        """Releases what is due, and calls `released` for each; returns when the next one is. Bookings that
        have ended or begun to answer meanwhile are skipped."""
        while self._due and self._due[0][0] <= now:
            booking = heappop(self._due)[2]
            if self._loads.is_active(booking) and not booking.is_computed:
                released(booking, now)
                self._loads.release_prefill(booking)
        return self._due[0][0] if self._due else None
