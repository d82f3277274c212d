"""RoutingCore: every fact that can change a decision enters here, and every decision leaves from here.

Synchronous and without I/O: nothing can happen between looking up, choosing and booking, so there are no
locks and no herds. `now` is monotonic seconds, read by the caller. Arithmetic is in the modules beside this
one.

A request id has at most one active booking. Calls about an id that has none (never booked, ended, its worker
gone) have no effect, so every way out of a request may call `finish` without knowing what happened before.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping

from indexer.adapters import ADAPTERS, Adapter
from indexer.limits import INDEX_BYTES
from policies.base import Needs, Policy
from policies.types import Decision, Role, RoutingRequest, WorkerId
from router.core.counters import CacheTotals
from router.core.disagg import DisaggRules, Mode
from router.core.fleet_state import FleetState
from router.core.limits import EXPIRY_INTERVAL_SECONDS, SWEEP_INTERVAL_SECONDS
from router.core.loads import Booking
from router.core.outcome import Outcome
from router.core.pairing import LEG_SUFFIX, Asked, Pairing
from router.core.planning import Plan
from router.core.pool_policies import PolicyPool, PoolPolicies
from router.core.prefill import PrefillReleases
from router.core.prompt import Prompt
from router.core.recent import RecentDecisions
from router.core.reports import Reports
from router.core.transfers import Received
from router.core.usage import CachedTokens
from router.core.workers import WorkerEntry


class RoutingCore(FleetState):
    """The gateway's mind. One object per process."""

    def __init__(
        self,
        *,
        policy: Policy,
        prefill_policy: Policy | None = None,
        decode_policy: Policy | None = None,
        disagg: DisaggRules = DisaggRules(),  # noqa: B008 - immutable
        predicted_ttl: float = 120.0,
        bridge_ttl: float = 5.0,
        index_bytes: int = INDEX_BYTES,
        seed: int = 0,
        hashing: str = "kvgate",
        adapters: Mapping[str, Adapter] = ADAPTERS,
    ) -> None:
        """`policy` is also that of pools without one of their own. `disagg`: where prompts are computed in
        fleets with such pools. `predicted_ttl`, `bridge_ttl`: seconds for which own decisions are
        believed; see `overlap`. `hashing`: how blocks are hashed, a row of `indexer.blocks.HASHINGS`.
        `index_bytes`: how much memory the exact index may take. `adapters`: by engine, who reads its KV
        events."""
        self.policies = PoolPolicies(
            policy, prefill=prefill_policy, decode=decode_policy, needs_overlap=disagg.needs_overlap
        )
        self._rng = random.Random(seed)
        super().__init__(
            predicted_ttl=predicted_ttl,
            bridge_ttl=bridge_ttl,
            index_bytes=index_bytes,
            hashing=hashing,
            adapters=adapters,
        )
        self._releases = PrefillReleases(self._loads)
        self._pairing = Pairing(
            self._planner,
            self._workers,
            self._loads,
            self._timekeeper,
            self._transfers,
            self.policies,
            disagg,
        )
        self._compares_times = disagg.mode is Mode.AUTO
        self._reports = Reports(self._workers, self._loads, self._beliefs, self._parity, self._planner)
        self._paired: dict[str, Plan] = {}
        """Requests whose prompt is being computed elsewhere."""
        self._decisions = RecentDecisions()

    @property
    def policy(self) -> Policy:
        """Where a model has no pools."""
        return self.policies.policy

    @property
    def needs(self) -> Needs:
        """What is read of requests: without `overlap` a prompt need not be prepared at all."""
        return self.policies.pooled_needs if self._workers.has_pools else self.policies.policy.needs

    def set_policy(self, policy: Policy, pool: PolicyPool | None = None) -> None:
        """From the next request on; what is in flight stays booked. See PoolPolicies."""
        self.policies.set(policy, pool)

    def can_serve(self) -> bool:
        """Whether some request could be answered now."""
        return self._pairing.can_serve()

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
        """Chooses a worker and books the request on it; or two, when its prompt is computed apart.

        `exclude`: workers that earlier attempts have tried. Raises NoWorkers when no worker can take it, and
        ValueError when the request is booked already.
        """
        if self._loads.get(request.id):
            raise ValueError(f"request {request.id} is booked already")
        plan = self._pairing.plan(Asked(request, prompt, self._rng, now, exclude, attempt))
        self._carry_out(plan)
        if plan.prefill is not None:
            self._carry_out(plan.prefill)
            self._paired[request.id] = plan
        self._decisions.add(plan.decision)
        return plan.decision

    def preview(self, request: RoutingRequest, prompt: Prompt | None, *, now: float) -> Decision:
        """What `route` would decide now. Leaves no trace: no booking, no belief, no turn, no draw."""
        rng = random.Random()
        rng.setstate(self._rng.getstate())
        return self._pairing.plan(Asked(request, prompt, rng, now)).decision

    def _carry_out(self, plan: Plan) -> None:
        entry, decision = plan.entry, plan.decision
        booking = plan.booking(queued=self._loads.prefill_tokens(entry.slot))
        # Alone means: nothing of another request can have touched the worker's cache in between.
        entry.sole = None if self._loads.num_requests(entry.slot) else booking
        if plan.inputs.policy.needs.times or self._keeps_all_times():
            self._timekeeper.book(booking, decision.now)
        if booking.received is not None:
            self._transfers.began(booking.received, decision.now)
        self._loads.book(booking)
        entry.lone.booked(booking)
        if booking.prefill_tokens and not booking.is_streamed:
            seconds = entry.speed.seconds_for(booking.queued_prefill_tokens)
            self._releases.schedule(booking, decision.now + seconds)
        if prompt := plan.inputs.prompt:
            self._beliefs.believe(entry.slot, prompt, entry.space, plan.inputs.overlap, now=decision.now)
            if entry.worker.role is not Role.PREFILL:  # one memory of prefixes, that of who answers
                self._planner.served_last.note(prompt.chains.get(entry.space, ()), entry.worker.id)
            self._parity.dispatched(booking, prompt, now=decision.now)
        plan.inputs.policy.placed(entry.worker)

    def _keeps_all_times(self) -> bool:
        """One leg's policy, and mode auto, ask for the times of both pools."""
        return self._compares_times or (self._workers.has_pools and self.policies.pooled_needs.times)

    def first_token(self, request_id: str, *, now: float, attempt: int | None = None) -> None:
        """The answer has begun (not streamed: its head came), so the prompt is computed. Again: no effect."""
        if booking := self._loads.get(request_id, attempt):
            self._start(booking, now)
            if request_id in self._paired:  # both legs run at once: what is decoded is computed
                self.prefill_answered(request_id, now=now)

    def prefill_answered(
        self,
        request_id: str,
        *,
        now: float,
        prompt_tokens: int | None = None,
        cached_tokens: int | None = None,
    ) -> CachedTokens | None:
        """The leg that computes the prompt is done, with that usage; no effect when there is none.

        Returns what `observe_usage` does, for the prefill worker.
        """
        if self._paired.pop(request_id, None) is None:
            return None
        booking = self._loads.get(request_id)
        if booking is not None and booking.received is not None:
            self._expect(booking, booking.received, now)
        leg_id = request_id + LEG_SUFFIX
        self.first_token(leg_id, now=now)
        cached = (
            self.observe_usage(leg_id, prompt_tokens=prompt_tokens, cached_tokens=cached_tokens, now=now)
            if prompt_tokens is not None
            else None
        )
        self.finish(leg_id, Outcome.DONE, now=now)
        return cached

    def prefill_failed(
        self, request_id: str, outcome: Outcome, *, now: float, exclude: Collection[WorkerId]
    ) -> Decision | None:
        """The leg that computes the prompt has failed; nothing that rests on it went to the decode worker.

        Returns the decision for another prefill worker, booked, or None: the decode worker computes the
        prompt itself, and is booked for that. `exclude`: prefill workers that were tried. Raises NoWorkers
        when there is neither way.
        """
        plan = self._paired.pop(request_id, None)
        self.finish(request_id + LEG_SUFFIX, outcome, now=now)
        booking = self._loads.get(request_id)
        if plan is None:
            return None
        if booking is None:  # its decode worker has left: what is on its way there goes on without books
            self._pairing.require_fallback(plan)
            return None
        leg = self._pairing.plan_leg(plan, rng=self._rng, now=now, exclude=exclude)
        if leg is not None:
            plan.pair(leg)
            self._carry_out(leg)
            self._paired[request_id] = plan
            return leg.decision
        self._pairing.require_fallback(plan)
        self._take_back(booking, plan, now)
        return None

    def _take_back(self, booking: Booking, plan: Plan, now: float) -> None:
        """The decode worker computes the prompt after all."""
        self._loads.free(booking)
        plan.stay_local(now)
        self._carry_out(plan)

    def _start(self, booking: Booking, now: float) -> None:
        if booking.is_started:
            return
        booking.is_started = True
        entry = self._workers.of_slot(booking.slot)
        booking.was_alone = entry.sole is booking
        if booking.received is not None:
            self._observe_transfer(booking, booking.received, now)
        elif booking.is_streamed:
            entry.speed.observe(booking.queued_prefill_tokens, now - booking.booked_at)
        self._timekeeper.computed(booking, now)
        self._loads.release_prefill(booking)
        self._beliefs.confirm(booking.slot, booking.unit, booking.expectation.chain)

    def _expect(self, booking: Booking, received: Received, now: float) -> None:
        """Its prompt is on its way. One that is not streamed shows no first token, so that it decodes is
        foretold."""
        if booking.is_started:
            return
        received.began_at = now
        if booking.is_streamed:
            self._transfers.set_off(received)
        else:
            transfer_ms = self._transfers.of(received.link, received.tokens, now)
            self._releases.schedule(booking, now + transfer_ms / 1000)

    def _observe_transfer(self, booking: Booking, received: Received, now: float) -> None:
        self._transfers.ended(received)
        if booking.is_streamed and received.began_at is not None:
            times = self._timekeeper.of_worker(booking.slot, now)
            was_calm = self._timekeeper.is_calm(booking.slot, received.began_at)
            self._transfers.observe(received, times.joining_ms(booking.num_tokens), now, was_calm=was_calm)

    def output_tokens(self, request_id: str, n: int, *, now: float) -> None:
        """`n` more tokens were generated; the first of them ends the prefill."""
        booking = self._loads.get(request_id)
        if booking and n > 0:
            if not booking.is_started:
                self.first_token(request_id, now=now)
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
        return self._reports.usage(booking, prompt_tokens, cached_tokens, now)

    def observe_cache_totals(
        self, worker_id: WorkerId, totals: CacheTotals, *, asked_at: float, now: float
    ) -> None:
        """The engine's totals, asked for at `asked_at`. Where its answers do not tell how much was cached,
        they do for a request that was alone."""
        if entry := self._workers.get(worker_id):
            self._reports.cache_totals(entry, totals, asked_at, now)

    def finish(self, request_id: str, outcome: Outcome, *, now: float, attempt: int | None = None) -> None:
        """Frees all that is booked for the request, exactly once. `attempt`: only if that one is active.

        An attempt that ended before its answer began leaves no belief behind that its prompt is held.
        """
        plan = self._paired.get(request_id)
        if plan is not None and attempt in (None, plan.decision.attempt):
            del self._paired[request_id]
            self.finish(request_id + LEG_SUFFIX, outcome, now=now)
        booking = self._loads.get(request_id, attempt)
        if booking is None:
            return
        entry = self._workers.of_slot(booking.slot)
        if entry.sole is booking:
            entry.sole = None
        self._timekeeper.ends(booking, now, is_whole=outcome is Outcome.DONE)
        self._transfers.ended(booking.received)
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
