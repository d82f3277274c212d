"""The time of all workers as one: their clocks, how often requests come, how long answers are.

Only policies that need times pay for them: what was booked under another one counts among the loads, but in
no queue and in no sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from policies.types import EngineTimes, Role, Slot, Worker
from router.core.engine_clock import EngineClock, FleetShape
from router.core.limits import (
    ARRIVALS_SECONDS,
    BATCHED_TOKENS,
    MEAN_OUTPUT_START,
    MEAN_OUTPUT_WEIGHT,
    MEMORY_FILLED,
)
from router.core.loads import ActiveSequences, Booking
from router.core.pools import Pool
from router.core.transfers import WorkerTimes


@dataclass(slots=True)
class _Arrivals:
    """How many requests came, fading with time."""

    count: float = 0.0
    at: float = 0.0

    def add(self, now: float) -> None:
        self.count, self.at = self._left(now) + 1, now

    def per_ms(self, now: float) -> float:
        return self._left(now) / (ARRIVALS_SECONDS * 1000)

    def _left(self, now: float) -> float:
        return self.count * math.exp((self.at - now) / ARRIVALS_SECONDS)


@dataclass(slots=True, eq=False)
class _Fleet:
    """Equal engines. Those that only compute prompts are chosen among themselves, so what comes to them is
    counted apart."""

    shape: FleetShape = field(default_factory=FleetShape)
    arrivals: _Arrivals = field(default_factory=_Arrivals)
    prefill_arrivals: _Arrivals = field(default_factory=_Arrivals)


class Timekeeper:
    """Bookings tell of themselves by `booking.timing`, None where they are not timed."""

    def __init__(self, loads: ActiveSequences) -> None:
        self._loads = loads
        self._clocks: dict[Slot, EngineClock] = {}
        self._fleets: dict[tuple[str, str], _Fleet] = {}
        self._fleet_of: dict[Slot, _Fleet] = {}
        self._arrivals_of: dict[Slot, _Arrivals] = {}
        self._mean_output = MEAN_OUTPUT_START

    def add_worker(self, slot: Slot, worker: Worker) -> None:
        """To be called when its loads are there."""
        fleet = self._fleets.setdefault((worker.engine, worker.base_model), _Fleet())
        self._fleet_of[slot] = fleet
        is_prefill = worker.role is Role.PREFILL
        self._arrivals_of[slot] = fleet.prefill_arrivals if is_prefill else fleet.arrivals
        self._clocks[slot] = EngineClock(fleet.shape, self._loads.of_worker(slot))
        self.set_capacity(slot, worker.num_blocks, worker.block_tokens)

    def set_capacity(self, slot: Slot, num_blocks: int | None, block_tokens: int | None) -> None:
        """As far as the worker tells; what it does not tell is no bound."""
        tokens = math.inf
        if num_blocks is not None and block_tokens is not None:
            tokens = MEMORY_FILLED * num_blocks * block_tokens
        self._clocks[slot].capacity_tokens = tokens

    def remove_worker(self, slot: Slot) -> None:
        del self._clocks[slot]
        fleet = self._fleet_of.pop(slot)
        del self._arrivals_of[slot]
        if fleet not in self._fleet_of.values():
            self._fleets = {key: each for key, each in self._fleets.items() if each is not fleet}

    def times(self, pool: Pool, now: float, byte_ratio: float) -> EngineTimes:
        """Columns are made of attributes without calls: this runs in every decision."""
        clocks = [self._clocks[slot] for slot in pool.slots]
        for clock in clocks:
            if clock.stale_at <= now:
                clock.refresh(now)
        loads = [clock.loads for clock in clocks]
        return EngineTimes(
            prefill=[clock.prefill for clock in clocks],
            step=[clock.step for clock in clocks],
            wait_ms=[
                (empty_at - now) * 1000 if (empty_at := clock.empty_at) > now else 0.0 for clock in clocks
            ],
            num_decoding=[each.num_decoding for each in loads],
            decoding_tokens=[each.decoding_prompt_tokens + each.output_tokens for each in loads],
            resident_tokens=[each.prompt_tokens + each.output_tokens for each in loads],
            free_tokens=[
                clock.capacity_tokens
                - (each.token_blocks.num_blocks + byte_ratio * each.byte_blocks.num_blocks)
                * space.block_tokens
                - each.output_tokens
                for clock, each, space in zip(clocks, loads, pool.row_spaces, strict=True)
            ],
            observed_step_ms=[clock.observed_step_ms for clock in clocks],
            mean_output_tokens=self._mean_output,
            arrivals_per_ms=self._arrivals_of[pool.slots[0]].per_ms(now) / len(clocks),
            batched_tokens=BATCHED_TOKENS,
        )

    def of_worker(self, slot: Slot, now: float) -> WorkerTimes:
        """One worker by itself."""
        clock = self._clocks[slot]
        clock.refresh(now)
        loads = clock.loads
        return WorkerTimes(
            clock.wait_ms(now), clock.prefill, clock.step, loads.num_decoding, loads.decoding_tokens
        )

    def is_calm(self, slot: Slot, since: float) -> bool:
        """Whether it has computed no prompt of its own since then, as far as was seen."""
        return self._clocks[slot].is_calm(since)

    def book(self, booking: Booking, now: float) -> None:
        """A request is sent. To be called before it counts among the loads."""
        clock = self._clocks[booking.slot]
        if booking.is_handed_over:  # it joins no queue, and counts as an arrival where its prompt is computed
            booking.timing = clock.receive(booking, now)
            return
        booking.timing = clock.book(booking, now)
        self._arrivals_of[booking.slot].add(now)

    def computed(self, booking: Booking, now: float) -> None:
        """Its answer has begun. To be called before it counts as decoding."""
        if booking.timing is not None:
            self._clocks[booking.slot].computed(booking, booking.timing, now)

    def foretold(self, booking: Booking, now: float) -> None:
        """Its prefill is taken to be over though no token showed it."""
        if booking.timing is not None:
            self._clocks[booking.slot].foretold(booking.request_id, now)

    def output(self, booking: Booking, num_tokens: int, now: float) -> None:
        if booking.timing is not None:
            self._clocks[booking.slot].output(booking.timing, num_tokens, now)

    def ends(self, booking: Booking, now: float, *, is_whole: bool) -> None:
        """Its attempt is over; `is_whole`: with the end of its answer."""
        if booking.timing is not None:
            self._clocks[booking.slot].leaves(booking.request_id, now)
        if is_whole and booking.num_output_tokens:
            self._mean_output += MEAN_OUTPUT_WEIGHT * (booking.num_output_tokens - self._mean_output)

    def check(self) -> None:
        """Asserts that every clock agrees with what is booked."""
        for clock in self._clocks.values():
            clock.check()
