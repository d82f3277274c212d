"""Which workers serve a request: one that does all of it, or one that decodes and another for its prompt.

The decode worker is chosen first, by the cost, as if it did everything; then `disagg` judges whether the
prompt is computed there. Changes nothing: what was chosen is booked by `routing`.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, replace

from policies.types import Role, RoutingRequest, Verdict, WorkerId
from router.core.candidates import held_tokens
from router.core.disagg import DisaggRules, Facts, Mode, Reason, decide, forced
from router.core.loads import ActiveSequences
from router.core.planning import Plan, Planner
from router.core.pool_policies import PoolPolicies
from router.core.pools import Part, Pool
from router.core.prompt import Prompt
from router.core.timekeeper import Timekeeper
from router.core.transfers import Side, TransferTimes, forecast
from router.core.workers import WorkerEntry, WorkerTable
from router.errors import NoWorkers

LEG_SUFFIX = "/prefill"
"""Behind a request's id it names the booking of the leg that computes its prompt."""


@dataclass(slots=True)
class Asked:
    """One call to route, as all steps of it need it."""

    request: RoutingRequest
    prompt: Prompt | None
    rng: random.Random
    now: float
    exclude: Collection[WorkerId] = ()
    attempt: int = 0


class Pairing:
    """Reads what the planner reads, and the rules."""

    def __init__(
        self,
        planner: Planner,
        workers: WorkerTable,
        loads: ActiveSequences,
        timekeeper: Timekeeper,
        transfers: TransferTimes,
        policies: PoolPolicies,
        rules: DisaggRules,
    ) -> None:
        self._planner = planner
        self._workers = workers
        self._loads = loads
        self._timekeeper = timekeeper
        self._transfers = transfers
        self._policies = policies
        self.rules = rules

    def plan(self, asked: Asked) -> Plan:
        """Raises NoWorkers."""
        if not self._workers.has_pools:
            return self._plan_whole(asked, Part.ANSWER)
        plan = self._plan_whole(asked, Part.WHOLE if asked.request.stays_whole else Part.ANSWER)
        if plan.entry.worker.role is not Role.DECODE:
            return plan
        leg = self._plan_leg(asked, plan)
        plan.decision.verdict = verdict = self._judge(asked, plan, leg)
        if leg is not None and verdict.is_remote:
            plan.pair(leg)
            return plan
        if plan.entry.worker.prefills_alone:
            return plan
        return self._without_decode_server(asked, plan, leg)

    def plan_leg(
        self, plan: Plan, *, rng: random.Random, now: float, exclude: Collection[WorkerId]
    ) -> Plan | None:
        """Another prefill worker for a request whose decode worker stays; None when there is none."""
        inputs = plan.inputs
        asked = Asked(inputs.request, inputs.prompt, rng, now, exclude, plan.decision.attempt)
        return self._plan_leg(asked, plan)

    def require_fallback(self, plan: Plan) -> None:
        """Raises NoWorkers where the decode worker may not, or cannot, compute the prompt."""
        worker = plan.entry.worker
        if not worker.prefills_alone:
            raise NoWorkers(f"No prefill worker is left for {worker.id}, which computes no prompts itself")
        if not self.rules.fallback:
            raise NoWorkers(f"No prefill worker is left, and --disagg-fallback is off for {worker.id}")

    def can_serve(self) -> bool:
        """Whether some model has a worker, or a pair, that takes new requests."""
        return any(map(self._can_answer, self._workers))

    def _can_answer(self, entry: WorkerEntry) -> bool:
        worker = entry.worker
        if not entry.is_up or worker.role is Role.PREFILL:
            return False
        if worker.role is Role.BOTH:
            return True
        if worker.prefills_alone and (self.rules.fallback or self.rules.mode is Mode.NEVER):
            return True
        transfer, model = worker.transfer, worker.base_model
        return transfer is not None and self._workers.prefill_pool(model, transfer.protocol) is not None

    def _plan_whole(self, asked: Asked, part: Part) -> Plan:
        model = asked.request.model
        pool = self._workers.pool(model, asked.exclude, part)
        has_decode = self._workers.has_pools and any(worker.role is Role.DECODE for worker in pool.workers)
        if has_decode and part is Part.ANSWER:
            pool = self._without_unreachable(asked, pool)
        return self._planner.plan(
            asked.request,
            asked.prompt,
            pool=pool,
            policy=self._policies.decode if has_decode else self._policies.policy,
            rng=asked.rng,
            now=asked.now,
            attempt=asked.attempt,
            looks_up=has_decode and self.rules.needs_overlap,
        )

    def _without_unreachable(self, asked: Asked, pool: Pool) -> Pool:
        """Less the decode servers that need a prefill worker and have none."""
        unreachable = {
            worker.id
            for worker in pool.workers
            if worker.role is Role.DECODE
            and not worker.prefills_alone
            and self._prefill_pool(asked, worker.transfer.protocol if worker.transfer else "") is None
        }
        if not unreachable:
            return pool
        return self._workers.pool(asked.request.model, {*asked.exclude, *unreachable}, Part.ANSWER)

    def _prefill_pool(self, asked: Asked, protocol: str) -> Pool | None:
        return self._workers.prefill_pool(asked.request.model, protocol, asked.exclude)

    def _plan_leg(self, asked: Asked, plan: Plan) -> Plan | None:
        transfer = plan.entry.worker.transfer
        if transfer is None or asked.request.stays_whole:
            return None
        pool = self._prefill_pool(asked, transfer.protocol)
        if pool is None:
            return None
        # Its answer ends with its prompt: that it is computed is seen as a stream's first token shows it.
        request = replace(asked.request, id=asked.request.id + LEG_SUFFIX, stream=True)
        return self._planner.plan(
            request,
            asked.prompt,
            pool=pool,
            policy=self._policies.prefill,
            rng=asked.rng,
            now=asked.now,
            attempt=asked.attempt,
        )

    # The verdict

    def _judge(self, asked: Asked, plan: Plan, leg: Plan | None) -> Verdict:
        facts = self._facts(plan, leg)
        if asked.request.stays_whole:
            return forced(self.rules, facts, is_remote=False, reason=Reason.STAYS_WHOLE)
        if leg is None:
            if not self.rules.fallback and decide(self.rules, facts).is_remote:
                raise NoWorkers(
                    f"No prefill worker can take a request for the model '{asked.request.model}', and decode "
                    "workers compute no prompts in their place: --disagg-fallback is off"
                )
            return forced(self.rules, facts, is_remote=False, reason=Reason.NO_PREFILL_WORKER)
        if asked.attempt and plan.entry.worker.prefills_alone:
            return forced(self.rules, facts, is_remote=False, reason=Reason.RETRIED)
        return decide(self.rules, facts)

    def _facts(self, plan: Plan, leg: Plan | None) -> Facts:
        inputs, entry = plan.inputs, plan.entry
        backlog = min(map(self._loads.prefill_tokens, leg.inputs.pool.slots)) if leg is not None else 0
        return Facts(
            prompt_tokens=inputs.num_tokens,
            cached_tokens=held_tokens(inputs, entry.slot),
            prefill_backlog_tokens=backlog,
            decode_usage=self._usage(plan, entry) if self.rules.decode_usage_max is not None else None,
            times_ms=self._forecast(plan, leg) if leg and self.rules.mode is Mode.AUTO else None,
        )

    def _forecast(self, plan: Plan, leg: Plan) -> dict[str, float]:
        now, num_tokens = plan.decision.now, plan.inputs.num_tokens
        decode, prefill = self._side(plan, now), self._side(leg, now)
        lacking = num_tokens - decode.cached_tokens
        assert plan.entry.worker.transfer is not None
        transfer_ms = self._transfers.of(plan.entry.worker.transfer.protocol, lacking, now)
        times = forecast(num_tokens, decode, prefill, transfer_ms)
        plan.transfer_after_ms = times["remote_wait"] + times["remote_prefill"]
        return times

    def _side(self, plan: Plan, now: float) -> Side:
        slot = plan.entry.slot
        return Side(times=self._timekeeper.of_worker(slot, now), cached_tokens=held_tokens(plan.inputs, slot))

    def _usage(self, plan: Plan, entry: WorkerEntry) -> float | None:
        """Share of the decode worker's blocks that would be active, those that are not full included."""
        capacity = entry.worker.num_blocks
        if not capacity:
            return None
        inputs = plan.inputs
        demand = inputs.demands[entry.space]
        tokens = self._loads.potential_tokens(
            entry.slot,
            inputs.unit,
            demand.chain,
            demand.num_unshared_blocks,
            demand.tail_tokens,
            block_tokens=entry.space.block_tokens,
            byte_ratio=inputs.byte_ratio,
        )
        return tokens / (capacity * entry.space.block_tokens)

    def _without_decode_server(self, asked: Asked, plan: Plan, leg: Plan | None) -> Plan:
        """Local prefill where the decode worker computes none: on a whole worker of the model, where there is
        one; otherwise the prompt is handed over all the same. Raises NoWorkers."""
        try:
            whole = self._plan_whole(asked, Part.WHOLE)
        except NoWorkers:
            if leg is None:
                raise
        else:
            whole.decision.verdict = plan.decision.verdict
            return whole
        plan.decision.verdict = forced(
            self.rules, self._facts(plan, leg), is_remote=True, reason=Reason.CANNOT_PREFILL
        )
        plan.pair(leg)
        return plan
