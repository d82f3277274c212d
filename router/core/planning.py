"""One decision, from the request to the policy's choice and what it means for the books. Changes nothing
but what engines' usage teaches about the length of byte prompts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from indexer.blocks import Unit
from indexer.parity import Subject
from policies.base import Policy
from policies.types import Candidates, Choice, Decision, RoutingRequest, WorkerId
from router.core.candidates import (
    Demand,
    Inputs,
    build_candidates,
    cached_tokens,
    held_tokens,
    overlap_lost_tokens,
)
from router.core.disagg import Reason
from router.core.loads import ActiveSequences, Booking
from router.core.overlap import NO_OVERLAP, Beliefs
from router.core.pools import Pool
from router.core.prompt import Prompt
from router.core.recent import ServedLast
from router.core.timekeeper import Timekeeper
from router.core.transfers import Received, link_of
from router.core.usage import NO_SUBJECT, NOTHING_EXPECTED, Expectation, TokenRatio, expected_cached_tokens
from router.core.workers import WorkerEntry, WorkerTable


@dataclass(slots=True)
class Plan:
    """A decision that was not carried out yet. `prefill_tokens`: what the worker has to compute for it.

    Not frozen for the reason given at Inputs.
    """

    decision: Decision
    entry: WorkerEntry
    inputs: Inputs
    prefill_tokens: int
    expectation: Expectation
    prefill: Plan | None = None
    """Of the leg that computes the prompt elsewhere."""
    transfer_after_ms: float | None = None
    """When that leg should be done, where that is foretold."""

    def pair(self, leg: Plan) -> None:
        """Its prompt is computed by that leg."""
        self.prefill, self.decision.prefill = leg, leg.decision

    def stay_local(self, now: float) -> None:
        """No prefill worker has computed its prompt: its own worker does, from `now` on."""
        self.prefill = self.decision.prefill = None
        self.decision.now = now
        if self.entry.space != self.inputs.space_of(self.entry.slot):
            self._recut()
        if (verdict := self.decision.verdict) is not None:
            self.decision.verdict = replace(verdict, is_remote=False, reason=Reason.PREFILL_FAILED)

    def _recut(self) -> None:
        """Its worker's events have shown other blocks meanwhile, of which the prompt has no hashes."""
        inputs, space = self.inputs, self.entry.space
        inputs.overlap = NO_OVERLAP
        inputs.demands = {space: Demand.of(inputs.prompt, space, assumes_reuse=False)}
        self.expectation = Expectation(num_tokens=self.expectation.num_tokens)

    def booking(self, *, queued: int) -> Booking:
        """`queued`: prefill tokens that the worker has before this request."""
        demand = self.inputs.demands[self.entry.space]
        prefill_tokens = 0 if self.prefill else self.prefill_tokens
        return Booking(
            request_id=self.decision.request_id,
            attempt=self.decision.attempt,
            slot=self.entry.slot,
            unit=self.inputs.unit,
            chain=demand.chain,
            num_unshared_blocks=demand.num_unshared_blocks,
            tail_tokens=demand.tail_tokens,
            prefill_tokens=prefill_tokens,
            num_tokens=self.inputs.num_tokens,
            queued_prefill_tokens=queued + prefill_tokens,
            booked_at=self.decision.now,
            is_streamed=self.inputs.request.stream,
            expectation=replace(self.expectation, is_exact=False) if self.prefill else self.expectation,
            received=self._received() if self.prefill is not None else None,
        )

    def _received(self) -> Received:
        after_ms = self.transfer_after_ms
        return Received(
            tokens=self.inputs.num_tokens - held_tokens(self.inputs, self.entry.slot),
            link=link_of(self.entry.worker),
            began_at=None if after_ms is None else self.decision.now + after_ms / 1000,
        )


class Planner:
    """Reads workers, loads, beliefs and times."""

    def __init__(
        self, workers: WorkerTable, loads: ActiveSequences, beliefs: Beliefs, timekeeper: Timekeeper
    ) -> None:
        self._workers = workers
        self._timekeeper = timekeeper
        self._loads = loads
        self._beliefs = beliefs
        self._ratios: dict[str, TokenRatio] = {}
        self.served_last = ServedLast()

    def plan(
        self,
        request: RoutingRequest,
        prompt: Prompt | None,
        *,
        pool: Pool,
        policy: Policy,
        rng: random.Random,
        now: float,
        attempt: int = 0,
        looks_up: bool = False,
        handed_over: Callable[[Inputs], Sequence[float | None]] | None = None,
    ) -> Plan:
        """`looks_up`: what the candidates hold is wanted, whatever the policy reads. `handed_over`: tells
        `EngineTimes.handed_over_ms` of the candidates; asked where the policy reads times."""
        looks_up = looks_up or policy.needs.overlap
        inputs = self._inputs(request, prompt, policy, pool, now, looks_up)
        candidates = build_candidates(
            inputs, self._loads, self._beliefs, lambda: self._find_served_last(prompt, pool)
        )
        if policy.needs.times:
            candidates.times = times = self._timekeeper.times(pool, now, inputs.byte_ratio)
            if handed_over is not None:
                times.handed_over_ms = handed_over(inputs)
        choice = policy.choose(request, candidates, rng)
        return self._conclude(inputs, candidates, choice, attempt)

    def _inputs(
        self,
        request: RoutingRequest,
        prompt: Prompt | None,
        policy: Policy,
        pool: Pool,
        now: float,
        looks_up: bool,
    ) -> Inputs:
        byte_ratio = self.token_ratio(pool.row_spaces[0].base_model)
        token_ratio = byte_ratio if prompt and prompt.unit is Unit.BYTES else 1.0
        return Inputs(
            request=request,
            prompt=prompt,
            policy=policy,
            pool=pool,
            now=now,
            num_tokens=round(prompt.num_tokens * token_ratio) if prompt else request.num_prompt_tokens,
            token_ratio=token_ratio,
            byte_ratio=byte_ratio,
            demands={space: Demand.of(prompt, space, policy.assumes_kv_reuse) for space in pool.spaces},
            overlap=self._beliefs.match(prompt, pool, now=now) if prompt and looks_up else NO_OVERLAP,
            is_looked_up=looks_up,
        )

    def _conclude(self, inputs: Inputs, candidates: Candidates, choice: Choice, attempt: int) -> Plan:
        entry = self._workers.of_slot(inputs.pool.slots[choice.row])
        expectation = self._expectation(inputs, entry)
        prefill_tokens, lost_tokens = inputs.num_tokens, 0
        if inputs.overlap.device or inputs.overlap.host or inputs.overlap.disk:
            prefill_tokens = max(0, prefill_tokens - round(held_tokens(inputs, entry.slot)))
            cached = cached_tokens(candidates, inputs.policy.tier_weights)
            lost_tokens = overlap_lost_tokens(cached, choice.row)
        trust = self._beliefs.trust(entry.slot)
        decision = Decision(
            request_id=inputs.request.id,
            attempt=attempt,
            worker=entry.worker,
            slot=entry.slot,
            policy=inputs.policy.name,
            reason=choice.reason,
            now=inputs.now,
            num_prompt_tokens=inputs.num_tokens,
            expected_cached_tokens=expectation.cached_tokens,
            trust=trust.level,
            candidates=candidates,
            choice=choice,
            client_request_id=inputs.request.client_request_id,
            details={
                "unit": inputs.unit,
                "exact_blocks": expectation.exact_blocks,
                "booked_prefill_tokens": prefill_tokens,
                "overlap_lost_tokens": lost_tokens,
                "trust_reason": trust.reason,
            },
        )
        return Plan(decision, entry, inputs, prefill_tokens, expectation)

    def _expectation(self, inputs: Inputs, entry: WorkerEntry) -> Expectation:
        prompt = inputs.prompt
        if prompt is None:
            return NOTHING_EXPECTED
        block_tokens = entry.space.block_tokens
        cached = expected_cached_tokens(inputs.overlap.depth(entry.slot), prompt.num_tokens, block_tokens)
        is_exact = (
            prompt.exact
            and prompt.unit is Unit.TOKENS
            and inputs.is_looked_up
            and (inputs.request.names_rank or entry.worker.dp_rank is None)
        )
        return Expectation(
            chain=prompt.chains.get(entry.space, ()),
            num_tokens=prompt.num_tokens,
            is_exact=is_exact,
            cached_tokens=round(cached * inputs.token_ratio),
            exact_blocks=inputs.overlap.exact.get(entry.slot, 0),
            num_losses=self._beliefs.num_losses(entry.slot),
            subject=self._subject(inputs.request.model, prompt) if is_exact else NO_SUBJECT,
        )

    def _subject(self, model: str, prompt: Prompt) -> Subject:
        return Subject(model, self._workers.catalogue.adapter_of(model), bool(prompt.cache_salt))

    def _find_served_last(self, prompt: Prompt | None, pool: Pool) -> WorkerId | None:
        if prompt is None:
            return None
        for space in pool.spaces:
            if (worker_id := self.served_last.find(prompt.chains.get(space, ()))) is not None:
                return worker_id
        return None

    # Lengths of byte prompts

    def token_ratio(self, base_model: str) -> float:
        """Real tokens for one estimated token of a byte prompt."""
        ratio = self._ratios.get(base_model)
        return ratio.value if ratio else 1.0

    def observe_prompt_tokens(self, base_model: str, booking: Booking, prompt_tokens: int | None) -> None:
        if booking.unit is Unit.BYTES and prompt_tokens:
            ratio = self._ratios.setdefault(base_model, TokenRatio())
            ratio.observe(prompt_tokens, booking.expectation.num_tokens)

    def keep_ratios_of(self, base_models: Collection[str]) -> None:
        """Forgets what was learnt of models that nobody serves any more."""
        self._ratios = {model: ratio for model, ratio in self._ratios.items() if model in base_models}
