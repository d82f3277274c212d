"""RoutingCore: every fact that can change a decision enters here, and every decision leaves from here.

Synchronous and without I/O: nothing can happen between looking up, choosing and booking, so there are no
locks and no herds. `now` is monotonic seconds, read by the caller. Arithmetic is in the modules beside this
one.

A request id has at most one active booking. Calls about an id that has none (never booked, ended, its worker
gone) have no effect, so every way out of a request may call `finish` without knowing what happened before.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence

from indexer.adapters import ADAPTERS, Adapter
from indexer.blocks import HashSpace
from indexer.feed import KvFeed
from indexer.limits import INDEX_BYTES
from indexer.parity import Check, ParityState, Subject
from indexer.parity import Outcome as ParityOutcome
from policies.base import Needs, Policy
from policies.types import Decision, RoutingRequest, Slot, Worker, WorkerId
from router.core.catalogue import Resolution
from router.core.counters import CacheTotals
from router.core.health import HealthSign
from router.core.limits import EXPIRY_INTERVAL_SECONDS, SWEEP_INTERVAL_SECONDS
from router.core.loads import ActiveSequences, Booking
from router.core.outcome import Outcome
from router.core.overlap import Beliefs
from router.core.parity import ParityChecks
from router.core.planning import Plan, Planner
from router.core.prefill import PrefillReleases
from router.core.prompt import Prompt
from router.core.recent import RecentDecisions
from router.core.timekeeper import Timekeeper
from router.core.usage import CachedTokens
from router.core.workers import WorkerChanges, WorkerEntry, WorkerTable, WorkerView


class RoutingCore:
    """The gateway's mind. One object per process."""

    def __init__(
        self,
        *,
        policy: Policy,
        predicted_ttl: float = 120.0,
        bridge_ttl: float = 5.0,
        index_bytes: int = INDEX_BYTES,
        seed: int = 0,
        hashing: str = "kvgate",
        adapters: Mapping[str, Adapter] = ADAPTERS,
    ) -> None:
        """`predicted_ttl`, `bridge_ttl`: seconds for which own decisions are believed; see `overlap`.
        `hashing`: how blocks are hashed, a row of `indexer.blocks.HASHINGS`. `index_bytes`: how
        much memory the exact index may take. `adapters`: by engine, who reads its KV events."""
        self.policy = policy
        self._rng = random.Random(seed)
        self._beliefs = Beliefs(
            predicted_ttl=predicted_ttl,
            bridge_ttl=bridge_ttl,
            hashing=hashing,
            index_bytes=index_bytes,
            adapters=adapters,
        )
        self._parity = ParityChecks(self._beliefs.feed)
        self._workers = WorkerTable(self._beliefs.is_free, hashing)
        self._loads = ActiveSequences()
        self._releases = PrefillReleases(self._loads)
        self._timekeeper = Timekeeper(self._loads)
        self._planner = Planner(self._workers, self._loads, self._beliefs, self._timekeeper)
        self._decisions = RecentDecisions()

    @property
    def feed(self) -> KvFeed:
        """Where the shell puts the workers' KV events."""
        return self._beliefs.feed

    @property
    def needs(self) -> Needs:
        """What the policy in force reads: without `overlap` a prompt need not be prepared at all."""
        return self.policy.needs

    def set_policy(self, policy: Policy) -> None:
        """From the next request on; what is in flight stays booked."""
        self.policy = policy

    # Workers

    def reconcile(self, workers: Sequence[Worker], *, now: float) -> WorkerChanges:
        """Makes the fleet exactly these workers. What goes takes its index and its bookings along.

        Two workers of one id raise ValueError.
        """
        changes, gone, new = self._workers.reconcile(workers)
        for entry in gone:
            self._beliefs.remove(entry.slot)
            self._loads.remove_worker(entry.slot)
            self._timekeeper.remove_worker(entry.slot)
            self._parity.remove(entry.slot)
        for entry in new:
            self._beliefs.add(entry.slot, entry.worker)
            self._loads.add_worker(entry.slot)
            self._timekeeper.add_worker(entry.slot, entry.worker)
            self._parity.add(entry.slot, entry.worker, entry.space)
        self._planner.keep_ratios_of({worker.base_model for worker in workers})
        return changes

    def observe_health(self, worker_id: WorkerId, sign: HealthSign, *, now: float) -> None:
        """No effect for a worker that has left."""
        entry = self._workers.observe(worker_id, sign)
        if entry and sign is HealthSign.RESTARTED:
            self._beliefs.forget_predictions(entry.slot)
            self._parity.restarted(entry.slot)
            self._workers.set_asleep(worker_id, False)

    def adopt_layout(self, worker_id: WorkerId) -> HashSpace | None:
        """Match a worker by blocks such as its events show, when they are not those that were believed.

        What its events have taught stays. Returns the space that it leaves, None when nothing changes.
        """
        entry = self._workers.get(worker_id)
        layout = self.feed.layout(entry.slot) if entry else None
        if entry is None or layout is None:
            return None
        former = entry.space
        space = former._replace(block_tokens=layout.block_tokens, lookahead_tokens=layout.lookahead_tokens)
        if space == former:
            return None
        self._beliefs.expect(entry.slot, layout)
        self._loads.recut(entry.slot, former.block_tokens, space.block_tokens)
        self._workers.move(entry, space)
        self._timekeeper.set_capacity(entry.slot, entry.worker.num_blocks, space.block_tokens)
        self._parity.moved(entry.slot, space)
        return former

    def refuse_events(self, worker_id: WorkerId, reason: str) -> None:
        """A publishing worker's event endpoint can't be opened: it is predicted. "" once it is open."""
        if (entry := self._workers.get(worker_id)) and self._beliefs.has_events(entry.slot):
            self._beliefs.refuse(entry.slot, reason)

    def set_draining(self, worker_id: WorkerId, draining: bool, *, now: float) -> None:
        """A draining worker finishes what it has and gets nothing new."""
        self._workers.set_draining(worker_id, draining)

    def set_asleep(self, worker_id: WorkerId, asleep: bool, *, now: float) -> None:
        """A sleeping worker gets nothing; its engine would refuse it."""
        self._workers.set_asleep(worker_id, asleep)

    def cache_emptied(self, worker_id: WorkerId) -> None:
        """Its engine has confirmed that its cache is empty, which its events tell only with its next step."""
        if entry := self._workers.get(worker_id):
            self._beliefs.forget_predictions(entry.slot)
            self._beliefs.feed.reset(entry.slot)

    def observe_tokens(self, worker_id: WorkerId, model: str, outcome: ParityOutcome, note: str = "") -> None:
        """What came of comparing the worker's tokens of a probe with ours; no effect for one that has
        left."""
        if entry := self._workers.get(worker_id):
            subject = Subject(model, self._workers.catalogue.adapter_of(model))
            self._parity.state(entry.slot).note(Check.TOKENS, subject, outcome, note)

    def parity(self, worker_id: WorkerId) -> ParityState | None:
        """What was found of the worker so far; None for one that has left."""
        entry = self._workers.get(worker_id)
        return self._parity.state(entry.slot) if entry else None

    def workers(self) -> list[WorkerView]:
        return [self._view(entry) for entry in self._workers]

    def worker(self, worker_id: WorkerId) -> WorkerView | None:
        entry = self._workers.get(worker_id)
        return self._view(entry) if entry else None

    def slot_of(self, worker_id: WorkerId) -> Slot | None:
        entry = self._workers.get(worker_id)
        return entry.slot if entry else None

    def _view(self, entry: WorkerEntry) -> WorkerView:
        slot, booked = entry.slot, self._loads.of_worker(entry.slot)
        return WorkerView(
            worker=entry.worker,
            slot=slot,
            health=entry.health,
            draining=entry.draining,
            asleep=entry.asleep,
            trust=self._beliefs.trust(slot),
            space=entry.space,
            num_active_requests=len(booked.bookings),
            active_prefill_tokens=booked.prefill_tokens,
            active_decode_blocks=self._loads.num_blocks(
                slot, self._planner.token_ratio(entry.space.base_model)
            ),
            active_output_tokens=booked.output_tokens,
            num_index_blocks=self._beliefs.num_index_blocks(slot),
            num_predicted_blocks=self._beliefs.num_predicted_blocks(slot),
        )

    # Models

    def models(self) -> tuple[str, ...]:
        """Every name that a worker answers to, sorted."""
        return self._workers.catalogue.names

    def resolve(self, model: str | None) -> Resolution:
        """What a request's model means. Raises NoWorkers, ModelRequired or UnknownModel."""
        return self._workers.catalogue.resolve(model)

    def hash_spaces(self, model: str) -> list[HashSpace]:
        """The spaces in which a prompt for this model must be hashed; one for each distinct block size."""
        return self._workers.hash_spaces(model)

    # Requests

    def route(
        self,
        request: RoutingRequest,
        prompt: Prompt | None,
        *,
        now: float,
        exclude: Collection[WorkerId] = (),
        attempt: int = 0,
    ) -> Decision:
        """Chooses a worker and books the request on it.

        `exclude`: workers that earlier attempts have tried. Raises NoWorkers when no worker can take it, and
        ValueError when the request is booked already.
        """
        if self._loads.get(request.id):
            raise ValueError(f"request {request.id} is booked already")
        plan = self._planner.plan(
            request, prompt, policy=self.policy, rng=self._rng, now=now, exclude=exclude, attempt=attempt
        )
        self._carry_out(plan)
        return plan.decision

    def preview(self, request: RoutingRequest, prompt: Prompt | None, *, now: float) -> Decision:
        """What `route` would decide now. Leaves no trace: no booking, no belief, no turn, no draw."""
        rng = random.Random()
        rng.setstate(self._rng.getstate())
        return self._planner.plan(request, prompt, policy=self.policy, rng=rng, now=now).decision

    def _carry_out(self, plan: Plan) -> None:
        entry, decision = plan.entry, plan.decision
        booking = plan.booking(queued=self._loads.prefill_tokens(entry.slot))
        # Alone means: nothing of another request can have touched the worker's cache in between.
        entry.sole = None if self._loads.num_requests(entry.slot) else booking
        if self.policy.needs.times:
            self._timekeeper.book(booking, decision.now)
        self._loads.book(booking)
        entry.lone.booked(booking)
        if booking.prefill_tokens and not booking.is_streamed:
            seconds = entry.speed.seconds_for(booking.queued_prefill_tokens)
            self._releases.schedule(booking, decision.now + seconds)
        if prompt := plan.inputs.prompt:
            self._beliefs.believe(entry.slot, prompt, entry.space, plan.inputs.overlap, now=decision.now)
            self._planner.served_last.note(prompt.chains.get(entry.space, ()), entry.worker.id)
            self._parity.dispatched(booking, prompt, now=decision.now)
        self.policy.placed(entry.worker)
        self._decisions.add(decision)

    def first_token(self, request_id: str, *, now: float, attempt: int | None = None) -> None:
        """The answer has begun (not streamed: its head came), so the prompt is computed. Again: no effect."""
        if booking := self._loads.get(request_id, attempt):
            self._start(booking, now)

    def _start(self, booking: Booking, now: float) -> None:
        if booking.is_started:
            return
        booking.is_started = True
        entry = self._workers.of_slot(booking.slot)
        booking.was_alone = entry.sole is booking
        if booking.is_streamed:
            entry.speed.observe(booking.queued_prefill_tokens, now - booking.booked_at)
        self._timekeeper.computed(booking, now)
        self._loads.release_prefill(booking)
        self._beliefs.confirm(booking.slot, booking.unit, booking.expectation.chain)

    def output_tokens(self, request_id: str, n: int, *, now: float) -> None:
        """`n` more tokens were generated; the first of them ends the prefill."""
        booking = self._loads.get(request_id)
        if booking and n > 0:
            self._start(booking, now)
            self._loads.add_output(booking, n)
            self._timekeeper.output(booking, n, now)

    def observe_usage(
        self, request_id: str, *, prompt_tokens: int | None, cached_tokens: int | None, now: float
    ) -> CachedTokens | None:
        """What the engine says of a request that has not ended yet.

        Teaches how long byte prompts are in tokens. Returns expected and reported cached tokens where the two
        must agree (an exact prompt, an engine that reports), else None. When a request that had its worker to
        itself was cached less than the worker's events had promised, that promise is withdrawn from the
        index.
        """
        booking = self._loads.get(request_id)
        if booking is None:
            return None
        entry = self._workers.of_slot(booking.slot)
        self._planner.observe_prompt_tokens(entry.space.base_model, booking, prompt_tokens)
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

    def observe_cache_totals(
        self, worker_id: WorkerId, totals: CacheTotals, *, asked_at: float, now: float
    ) -> None:
        """The engine's totals, asked for at `asked_at`. Where its answers do not tell how much was cached,
        they do for a request that was alone."""
        entry = self._workers.get(worker_id)
        if entry is None:
            return
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
            self.feed.learn(slot, expectation.chain[: reported // block_tokens])

    def finish(self, request_id: str, outcome: Outcome, *, now: float, attempt: int | None = None) -> None:
        """Frees all that is booked for the request, exactly once. `attempt`: only if that one is active.

        An attempt that ended before its answer began leaves no belief behind that its prompt is held.
        """
        booking = self._loads.get(request_id, attempt)
        if booking is None:
            return
        entry = self._workers.of_slot(booking.slot)
        if entry.sole is booking:
            entry.sole = None
        self._timekeeper.ends(booking, now, is_whole=outcome is Outcome.DONE)
        self._loads.free(booking)
        is_computed = booking.leaves_its_prompt(outcome)
        self._parity.ended(booking, is_computed=is_computed, now=now)
        if is_computed:
            entry.lone.computed(booking, now=now)
        if not is_computed:
            self._disbelieve(booking, entry)
        elif not booking.is_started:
            self._beliefs.confirm(booking.slot, booking.unit, booking.expectation.chain)

    def _disbelieve(self, booking: Booking, entry: WorkerEntry) -> None:
        """What other requests in flight share with it may still come true."""
        chain = booking.expectation.chain
        depth = self._loads.shared_depth(booking.slot, booking.unit, chain)
        self._beliefs.retract(booking.slot, booking.unit, chain[depth:])
        self._planner.served_last.forget(chain, entry.worker.id)

    # Time and insight

    def expire(self, *, now: float) -> float | None:
        """Does what is due by `now`; returns when to call again, None when nothing waits."""
        deadlines = [
            self._releases.release_due(now, self._timekeeper.foretold),
            self._parity.conclude(now=now),
        ]
        if not self._beliefs.expire(now=now):
            deadlines.append(now + SWEEP_INTERVAL_SECONDS)
        elif any(self._beliefs.num_predicted_blocks(entry.slot) for entry in self._workers):
            deadlines.append(now + EXPIRY_INTERVAL_SECONDS)
        return min((at for at in deadlines if at is not None), default=None)

    def decisions(self) -> list[Decision]:
        """The last decisions, newest first."""
        return self._decisions.latest()

    def decision(self, request_id: str) -> Decision | None:
        """The latest decision for that request, if it is still remembered."""
        return self._decisions.get(request_id)

    def check(self) -> None:
        """Asserts every invariant of the core and of what it rests on; takes time in proportion to its
        size."""
        self._workers.check()
        self._loads.check()
        self._beliefs.check()
        self._timekeeper.check()
        for entry in self._workers:
            booked = self._loads.of_worker(entry.slot).bookings
            assert entry.sole is None or booked == {entry.sole.request_id: entry.sole}
