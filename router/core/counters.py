"""Cached tokens of a request out of its engine's own totals, for engines whose answers do not tell them.

Totals speak of a single request when it alone was on the worker between two readings, and when the engine
looked up exactly as many tokens meanwhile as its prompt has: then nobody else, another gateway say, can have
been there.
"""

from __future__ import annotations

from dataclasses import dataclass

from router.core.loads import Booking


@dataclass(frozen=True, slots=True)
class CacheTotals:
    """An engine's totals since its start, in tokens: looked up in its prefix cache, and found there."""

    queries: int
    hits: int


class LoneRequests:
    """What was booked on one worker since its totals were read last."""

    __slots__ = ("_booking", "_ended_at", "_num_booked", "_totals")

    def __init__(self) -> None:
        self._totals: CacheTotals | None = None
        self._begin(num_booked=0)

    def _begin(self, num_booked: int) -> None:
        self._num_booked = num_booked
        self._booking: Booking | None = None
        self._ended_at = 0.0

    def booked(self, booking: Booking) -> None:
        self._num_booked += 1
        self._booking = booking

    def computed(self, booking: Booking, *, now: float) -> None:
        """The request has ended, and its prompt was computed."""
        if booking is self._booking:
            self._ended_at = now

    def read(self, totals: CacheTotals, *, num_active: int, asked_at: float) -> tuple[Booking, int] | None:
        """The totals of now, asked for at `asked_at`; `num_active` requests are booked. The request that they
        speak of, with its cached tokens, if there is one."""
        booking, before = self._booking, self._totals
        was_lone = booking is not None and self._num_booked == 1 and 0.0 < self._ended_at <= asked_at
        self._totals = totals
        self._begin(num_active)
        if booking is None or before is None or not was_lone:
            return None
        if totals.queries - before.queries != booking.expectation.num_tokens:
            return None
        return booking, totals.hits - before.hits
