"""One worker's time: when its prefill queue should be empty, and what its tokens show of its speed.

The queue's end drains by itself and is set right by every first token. How samples become coefficients is the
business of `learning`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from policies.engine_time import PrefillTime, StepTime, num_chunks
from router.core.learning import Factor, Shape
from router.core.limits import (
    BATCHED_TOKENS,
    FIRST_TOKENS_TOGETHER_SECONDS,
    OBSERVED_STEP_WEIGHT,
    OUTLIER_FACTOR,
    OUTLIER_PREFILL_MS,
    OUTLIER_STEP_MS,
    PREFILL_PRIOR,
    SAMPLE_BASE_MS,
    SAMPLE_TOKEN_MS,
    STEP_PRIOR,
    STEP_SAMPLE_MS,
    STEPS_FOR_A_SAMPLE,
    TIMES_KEPT_SECONDS,
)
from router.core.loads import Booking, Timing, WorkerBookings


@dataclass(slots=True)
class FleetShape:
    """What equal engines have in common."""

    prefill: Shape = field(default_factory=lambda: Shape(PREFILL_PRIOR))
    step: Shape = field(default_factory=lambda: Shape(STEP_PRIOR))


@dataclass(slots=True)
class _Together:
    """First tokens that came together: one sample of prefill. Milliseconds, but times in seconds."""

    dispatched_at: float
    previous_at: float
    at: float
    steps_ms: float
    """Of the decoding that went on meanwhile, for one chunk."""
    x: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    is_known: bool = True
    """How long every prompt was."""

    def add(self, timing: Timing, at: float) -> None:
        self.at = at
        self.dispatched_at = min(self.dispatched_at, timing.dispatched_at)
        self.x = [mine + value for mine, value in zip(self.x, timing.x, strict=True)]
        self.is_known = self.is_known and timing.x[1] > 0


class EngineClock:
    """`loads`: what is booked on the worker. `now` is seconds, everything else milliseconds."""

    def __init__(self, fleet: FleetShape, loads: WorkerBookings) -> None:
        self._fleet = fleet
        self.loads = loads
        self.capacity_tokens = math.inf
        """What it fills before prompts wait; infinite while that is not known."""
        self._waiting: dict[str, Timing] = {}  # booked without a first token, in the order of dispatch
        self.empty_at = 0.0
        """When the queue should be empty; long ago: it is."""
        self._together: _Together | None = None
        self._first_token_at = 0.0
        self._prefill_factor = Factor()
        self._step_factor = Factor()
        self._calm_since = 0.0
        self._tokens_to_skip = 0
        self.stale_at = 0.0
        """When to `refresh`."""
        self.prefill = PrefillTime(*PREFILL_PRIOR)
        self.step = StepTime(*STEP_PRIOR)
        self.observed_step_ms = 0.0

    # The queue

    def wait_ms(self, now: float) -> float:
        return (self.empty_at - now) * 1000 if self.empty_at > now else 0.0

    def is_calm(self, since: float) -> bool:
        """Whether no prompt waits here, and none was computed since then, as far as was seen."""
        return not self._waiting and self._first_token_at < since

    def refresh(self, now: float) -> None:
        """Brings `prefill` and `step` up to date. What other workers teach is known within a second."""
        if now < self.stale_at:
            return
        prefill, step = self._fleet.prefill.coefficients, self._fleet.step.coefficients
        factor = self._prefill_factor.value(prefill, now)
        self.prefill = PrefillTime(*(factor * each for each in prefill))
        factor = self._step_factor.value(step, now)
        self.step = StepTime(*(factor * each for each in step))
        self.stale_at = now + TIMES_KEPT_SECONDS

    def book(self, booking: Booking, now: float) -> Timing:
        """A prompt joins the queue. To be called before its booking counts among the loads."""
        self.refresh(now)
        num_tokens = booking.num_tokens
        cached = min(max(0, num_tokens - 1), num_tokens - booking.prefill_tokens)
        new, loads = num_tokens - cached, self.loads
        booked = self.prefill.of(num_tokens, cached)
        if loads.num_decoding:
            booked += num_chunks(new, BATCHED_TOKENS) * self.step.of(
                loads.num_decoding, loads.decoding_tokens
            )
        x = (1.0, float(new), float(num_tokens * num_tokens - cached * cached))
        timing = Timing(booked, now, x, booking.is_streamed)
        self._waiting[booking.request_id] = timing
        self.empty_at = max(self.empty_at, now) + booked / 1000
        return timing

    def receive(self, booking: Booking, now: float) -> Timing:
        """A prompt that is computed elsewhere: only the steps of its stream are of interest."""
        return Timing(0.0, now, (0.0, 0.0, 0.0), booking.is_streamed)

    def computed(self, booking: Booking, timing: Timing, now: float) -> None:
        """Its first token, or the head of its answer. To be called before it counts as decoding."""
        if booking.is_handed_over:
            timing.last_token_at = now
            self._calm_since = now
        if booking.request_id not in self._waiting:
            return
        if timing.is_streamed:
            self._sample_prefill(booking.request_id, now)
        else:
            del self._waiting[booking.request_id]
        timing.last_token_at = now
        left = sum(each.booked_ms for each in self._waiting.values())
        self.empty_at = now + left / 1000 if self._waiting else 0.0
        self._calm_since = now

    def foretold(self, request_id: str, now: float) -> None:
        """Its prefill is taken to be over, though nothing showed it."""
        if self._waiting.pop(request_id, None) is not None:
            self._calm_since = now
            if not self._waiting:
                self.empty_at = 0.0

    def leaves(self, request_id: str, now: float) -> None:
        """Its attempt ended; what it had booked and not used is free."""
        if (timing := self._waiting.pop(request_id, None)) is not None:
            self.empty_at = max(now, self.empty_at - timing.booked_ms / 1000) if self._waiting else 0.0
            self._calm_since = now

    # Samples

    def _sample_prefill(self, request_id: str, now: float) -> None:
        """Engines compute prompts in the order of their arrival, so answers in one piece that were dispatched
        before belong to the sample."""
        together = self._together
        if together is None or now - together.at > FIRST_TOKENS_TOGETHER_SECONDS:
            self.learn(now)
            step = self.step.of(self.loads.num_decoding, self.loads.decoding_tokens) - self.step.base
            together = self._together = _Together(now, self._first_token_at, now, step)
        timing = self._waiting[request_id]
        before = [
            each
            for each, other in self._waiting.items()
            if not other.is_streamed and other.dispatched_at <= timing.dispatched_at
        ]
        for each in (*before, request_id):
            together.add(self._waiting.pop(each), now)
        self._first_token_at = now

    def learn(self, now: float) -> None:
        """What came together is complete: it is a sample."""
        together, self._together = self._together, None
        if together is None or not together.is_known:
            return
        began_at = max(together.dispatched_at, together.previous_at)
        x = together.x[0], together.x[1], together.x[2]
        predicted = sum(c * value for c, value in zip(self.prefill, x, strict=True))
        taken = (together.at - began_at) * 1000 - num_chunks(x[1], BATCHED_TOKENS) * together.steps_ms
        taken = min(max(0.0, taken), OUTLIER_FACTOR * predicted + OUTLIER_PREFILL_MS)
        weight = 1 / (SAMPLE_BASE_MS + SAMPLE_TOKEN_MS * x[1])
        self._fleet.prefill.observe(x, taken, weight * weight)
        self._prefill_factor.observe(x, taken, weight, now)
        self.stale_at = 0.0

    def output(self, timing: Timing, num_tokens: int, now: float) -> None:
        """More tokens of a stream, whether one or those of a while. The gap of one step in a few is a sample,
        where no prefill came between."""
        last, timing.last_token_at = timing.last_token_at, now
        self._tokens_to_skip -= num_tokens
        if self._tokens_to_skip > 0:
            return
        loads = self.loads
        if now <= last or not last:
            return
        self._tokens_to_skip = STEPS_FOR_A_SAMPLE * loads.num_decoding
        gap = (now - last) * 1000 / num_tokens
        seen = self.observed_step_ms
        self.observed_step_ms = seen + OBSERVED_STEP_WEIGHT * (gap - seen) if seen else gap
        if self._waiting or loads.prefill_tokens or last < self._calm_since:
            return
        x = 1.0, float(loads.num_decoding), float(loads.decoding_tokens)
        gap = min(gap, OUTLIER_FACTOR * self.step.of(x[1], x[2]) + OUTLIER_STEP_MS)
        self._fleet.step.observe(x, gap, 1.0)
        self._step_factor.observe(x, gap, 1 / STEP_SAMPLE_MS, now)
        self.stale_at = 0.0

    def check(self) -> None:
        """Asserts that the queue holds what waits, and nothing once nothing does."""
        assert self._waiting.keys() <= self.loads.bookings.keys()
        assert self._waiting or not self.empty_at
