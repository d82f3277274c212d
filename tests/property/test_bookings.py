"""Bookings under any interleaving of what can happen to requests and workers, against a naive reference.

The reference keeps a list of what is in flight and recomputes every figure from it, each time, from scratch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from indexer.blocks import Unit
from indexer.byte_blocks import COVERED
from policies import make_policy
from router.core.health import HealthSign
from router.core.outcome import Outcome
from router.core.prefill import PrefillSpeed
from router.errors import NoWorkers
from tests.support.fleets import chain_of, make_core, prompt_of, request, silent

BLOCK_SIZES = {"a": 16, "b": 16, "c": 32, "d": 16}
FLEET = {name: silent(name, block_tokens=size) for name, size in BLOCK_SIZES.items()}
TTL = 20.0

prompts = st.tuples(
    st.integers(0, 2), st.integers(0, 700), st.integers(0, 2), st.integers(0, 300), st.sampled_from(Unit)
)
outcomes = st.sampled_from(Outcome)


def tokens_of(prompt):
    """Prompts of few families, so that prefixes are shared often."""
    first, num_first, second, num_second, _unit = prompt
    return [first] * num_first + [second] * num_second


def chain(prompt, worker_id):
    return chain_of(tokens_of(prompt), BLOCK_SIZES[worker_id], prompt[-1])


def widths(prompt, worker_id):
    """How many of the worker's blocks each hash stands for, and how many complete ones have no hash."""
    hashes, covered = chain(prompt, worker_id), COVERED[prompt[-1]]
    num_left = len(tokens_of(prompt)) // BLOCK_SIZES[worker_id] - covered[len(hashes)]
    return {block: covered[i + 1] - covered[i] for i, block in enumerate(hashes)}, num_left


@dataclass
class Flight:
    worker_id: str
    attempt: int
    prompt: tuple
    streamed: bool
    prefill: int
    queued: int
    booked_at: float
    release_at: float | None
    output: int = 0
    started: bool = False

    @property
    def is_computed(self):
        return self.started or (not self.streamed and self.prefill == 0)


@dataclass
class Reference:
    """What is in flight, and what was sent where."""

    flights: dict[str, Flight] = field(default_factory=dict)
    sent: dict[str, dict[int, float]] = field(default_factory=dict)
    unproven: dict[str, set[int]] = field(default_factory=dict)
    speeds: dict[str, PrefillSpeed] = field(default_factory=dict)

    def join(self, worker_id):
        self.forget(worker_id)
        self.speeds[worker_id] = PrefillSpeed()

    def forget(self, worker_id):
        self.sent[worker_id], self.unproven[worker_id] = {}, set()

    def leave(self, worker_id):
        self.flights = {key: flight for key, flight in self.flights.items() if flight.worker_id != worker_id}

    def of(self, worker_id):
        return [flight for flight in self.flights.values() if flight.worker_id == worker_id]

    def blocks(self, worker_id):
        return {block for flight in self.of(worker_id) for block in chain(flight.prompt, worker_id)}

    def num_blocks(self, worker_id, *more_prompts):
        """Blocks of all that is in flight and of these prompts, shared ones once."""
        held, num_unshared = {}, 0
        for prompt in (*(flight.prompt for flight in self.of(worker_id)), *more_prompts):
            hashed, num_left = widths(prompt, worker_id)
            held |= hashed
            num_unshared += num_left
        return sum(held.values()) + num_unshared

    def num_tail_tokens(self, worker_id, *more_prompts):
        """Tokens of the last blocks, which are not full and shared with nobody."""
        prompts = (*(flight.prompt for flight in self.of(worker_id)), *more_prompts)
        return sum(len(tokens_of(prompt)) % BLOCK_SIZES[worker_id] for prompt in prompts)

    def prefill(self, worker_id):
        return sum(flight.prefill for flight in self.of(worker_id))

    def overlap(self, worker_id, prompt, now):
        held = 0
        for block in chain(prompt, worker_id):
            if self.sent[worker_id].get(block, 0) <= now:
                break
            held += 1
        return COVERED[prompt[-1]][held]

    def route(self, request_id, worker_id, attempt, prompt, streamed, now):
        num_cached = self.overlap(worker_id, prompt, now) * BLOCK_SIZES[worker_id]
        prefill = len(tokens_of(prompt)) - num_cached
        queued = self.prefill(worker_id) + prefill
        release_at = None if streamed else now + self.speeds[worker_id].seconds_for(queued)
        self.flights[request_id] = Flight(
            worker_id, attempt, prompt, streamed, prefill, queued, now, release_at
        )
        sent, blocks = self.sent[worker_id], chain(prompt, worker_id)
        self.unproven[worker_id] |= {block for block in blocks if sent.get(block, 0) <= now}
        sent.update(dict.fromkeys(blocks, now + TTL))

    def start(self, request_id, now):
        flight = self.flights.get(request_id)
        if flight and not flight.started:
            flight.started, flight.prefill = True, 0
            self.unproven[flight.worker_id] -= set(chain(flight.prompt, flight.worker_id))
            if flight.streamed:
                self.speeds[flight.worker_id].observe(flight.queued, now - flight.booked_at)

    def end(self, request_id, outcome):
        flight = self.flights.pop(request_id, None)
        if flight is None or flight.started:
            return
        blocks = set(chain(flight.prompt, flight.worker_id))
        if outcome is Outcome.CLIENT_GONE and flight.is_computed:
            self.unproven[flight.worker_id] -= blocks
            return
        for block in (blocks - self.blocks(flight.worker_id)) & self.unproven[flight.worker_id]:
            del self.sent[flight.worker_id][block]
            self.unproven[flight.worker_id].discard(block)

    def expire(self, now):
        for flight in self.flights.values():
            if flight.release_at is not None and flight.release_at <= now:
                flight.prefill = 0


class Bookings(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.now = 1.0
        self.ids = 0
        self.present = set(FLEET)
        self.core = make_core(list(FLEET.values()), predicted_ttl=TTL)
        self.reference = Reference()
        for worker_id in FLEET:
            self.reference.join(worker_id)

    def some_id(self, data):
        """An id in flight, one that has ended, or one never seen."""
        return f"r{data.draw(st.integers(0, self.ids + 1))}"

    def route_once(self, request_id, prompt, streamed, *, attempt=0, exclude=()):
        ready = prompt_of(tokens_of(prompt), block_sizes=(16, 32), unit=prompt[-1])
        asked = request(request_id, stream=streamed)
        try:
            decision = self.core.route(asked, ready, now=self.now, attempt=attempt, exclude=exclude)
        except NoWorkers:
            return
        assert decision.worker.id not in exclude
        self.compare_columns(decision.candidates, prompt)
        self.reference.route(request_id, decision.worker.id, attempt, prompt, streamed, self.now)

    def compare_columns(self, candidates, prompt):
        reference_block = min(BLOCK_SIZES[worker_id] for worker_id in self.present)
        assert candidates.block_tokens == reference_block
        assert candidates.prompt_blocks == len(tokens_of(prompt)) / reference_block
        for row, worker in enumerate(candidates.workers):
            scale = BLOCK_SIZES[worker.id] / reference_block
            in_blocks = self.reference.num_blocks(worker.id, prompt) * BLOCK_SIZES[worker.id]
            joined = in_blocks + self.reference.num_tail_tokens(worker.id, prompt)
            assert candidates.potential_decode_blocks[row] == joined / reference_block
            assert candidates.active_prefill_blocks[row] * reference_block == self.reference.prefill(
                worker.id
            )
            assert candidates.num_active_requests[row] == len(self.reference.of(worker.id))
            held = self.reference.overlap(worker.id, prompt, self.now)
            assert candidates.device_overlap[row] == held * scale

    @rule(prompt=prompts, streamed=st.booleans())
    def route(self, prompt, streamed):
        self.ids += 1
        self.route_once(f"r{self.ids}", prompt, streamed)

    @precondition(lambda self: self.reference.flights)
    @rule(data=st.data(), prompt=prompts)
    def route_an_id_that_is_in_flight(self, data, prompt):
        request_id = data.draw(st.sampled_from(sorted(self.reference.flights)))
        with pytest.raises(ValueError, match="booked already"):
            self.core.route(request(request_id), prompt_of(tokens_of(prompt)), now=self.now)

    @precondition(lambda self: self.reference.flights)
    @rule(data=st.data())
    def retry(self, data):
        request_id = data.draw(st.sampled_from(sorted(self.reference.flights)))
        old = self.reference.flights[request_id]
        self.reference.end(request_id, Outcome.WORKER_FAILED)
        self.core.finish(request_id, Outcome.WORKER_FAILED, now=self.now)
        exclude = {old.worker_id}
        self.route_once(request_id, old.prompt, old.streamed, attempt=old.attempt + 1, exclude=exclude)

    @rule(data=st.data())
    def first_token(self, data):
        request_id = self.some_id(data)
        self.core.first_token(request_id, now=self.now)
        self.reference.start(request_id, self.now)

    @rule(data=st.data(), n=st.integers(1, 5))
    def output_tokens(self, data, n):
        request_id = self.some_id(data)
        self.core.output_tokens(request_id, n, now=self.now)
        self.reference.start(request_id, self.now)
        if flight := self.reference.flights.get(request_id):
            flight.output += n

    @rule(data=st.data(), outcome=outcomes, times=st.integers(1, 2))
    def finish(self, data, outcome, times):
        request_id = self.some_id(data)
        for _ in range(times):
            self.core.finish(request_id, outcome, now=self.now)
        self.reference.end(request_id, outcome)

    @rule(data=st.data(), attempt=st.integers(0, 2))
    def finish_one_attempt(self, data, attempt):
        request_id = self.some_id(data)
        self.core.finish(request_id, Outcome.CLIENT_GONE, now=self.now, attempt=attempt)
        flight = self.reference.flights.get(request_id)
        if flight and flight.attempt == attempt:
            self.reference.end(request_id, Outcome.CLIENT_GONE)

    @rule(worker_id=st.sampled_from(sorted(FLEET)))
    def worker_leaves_or_returns(self, worker_id):
        self.present ^= {worker_id}
        self.core.reconcile([FLEET[name] for name in sorted(self.present)], now=self.now)
        if worker_id in self.present:
            self.reference.join(worker_id)
        else:
            self.reference.leave(worker_id)

    @rule(worker_id=st.sampled_from(sorted(FLEET)), sign=st.sampled_from(HealthSign))
    def health(self, worker_id, sign):
        self.core.observe_health(worker_id, sign, now=self.now)
        if sign is HealthSign.RESTARTED and worker_id in self.present:
            self.reference.forget(worker_id)

    @rule(worker_id=st.sampled_from(sorted(FLEET)), draining=st.booleans())
    def drain(self, worker_id, draining):
        self.core.set_draining(worker_id, draining, now=self.now)

    @rule(seconds=st.floats(0.001, 15))
    def time_passes(self, seconds):
        self.now += seconds
        self.core.expire(now=self.now)
        self.reference.expire(self.now)

    @rule(prompt=prompts)
    def preview(self, prompt):
        ready = prompt_of(tokens_of(prompt), block_sizes=(16, 32), unit=prompt[-1])
        try:
            decisions = [self.core.preview(request("preview"), ready, now=self.now) for _ in range(2)]
        except NoWorkers:
            return
        assert decisions[0].worker == decisions[1].worker

    @rule(temperature=st.sampled_from([0, 0.5]))
    def policy_changes(self, temperature):
        self.core.set_policy(make_policy("kv", {"temperature": temperature}))

    @invariant()
    def equals_the_reference(self):
        self.core.check()
        views = {view.worker.id: view for view in self.core.workers()}
        assert views.keys() == self.present
        for worker_id, view in views.items():
            assert view.num_active_requests == len(self.reference.of(worker_id))
            assert view.active_prefill_tokens == self.reference.prefill(worker_id) >= 0
            assert view.active_decode_blocks == self.reference.num_blocks(worker_id)
            assert view.active_output_tokens == sum(f.output for f in self.reference.of(worker_id))

    def teardown(self):
        for request_id in list(self.reference.flights):
            self.core.finish(request_id, Outcome.DONE, now=self.now)
        for view in self.core.workers():
            assert view.num_active_requests == view.active_prefill_tokens == 0
            assert view.active_decode_blocks == view.active_output_tokens == 0


TestBookings = Bookings.TestCase
TestBookings.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
