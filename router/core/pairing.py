"""Which workers serve a request: one that does all of it, or one that decodes and another for its prompt.

The decode worker is chosen first, by the cost, as if it did everything; then `disagg` judges whether the
prompt is computed there. Changes nothing: what was chosen is booked by `routing`.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import partial

from policies.types import Role, RoutingRequest, Verdict, Worker, WorkerId
from router.core.candidates import Inputs, held_tokens
from router.core.disagg import DisaggRules, Facts, Mode, Reason, decide, forced
from router.core.loads import ActiveSequences
from router.core.planning import Plan, Planner
from router.core.pool_policies import PoolPolicies
from router.core.pools import Part, Pool
from router.core.prompt import Prompt
from router.core.timekeeper import Timekeeper
from router.core.transfers import Side, TransferTimes, forecast, link_of
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
    legs: dict[str, Plan | None] = field(default_factory=dict)
    """By protocol, what the prefill workers can do for it, as far as that was asked."""


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
        leg = self._leg_for(asked, plan.entry.worker)
        plan.decision.verdict = verdict = self._judge(asked, plan.inputs, plan.entry, leg)
        if leg is not None:
            plan.transfer_after_ms = _computed_after(verdict)
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
        return self._leg_for(asked, plan.entry.worker)

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
            handed_over=partial(self._handed_over, asked) if has_decode and part is Part.ANSWER else None,
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
        if len(unreachable) == len(pool.workers):
            raise NoWorkers(
                f"No worker can take a request for the model '{asked.request.model}': its decode workers "
                "compute no prompts, and no prefill worker that hands over to them is up"
            )
        return self._workers.pool(asked.request.model, {*asked.exclude, *unreachable}, Part.ANSWER)

    def _prefill_pool(self, asked: Asked, protocol: str) -> Pool | None:
        return self._workers.prefill_pool(asked.request.model, protocol, asked.exclude)

    def _leg_for(self, asked: Asked, decode: Worker) -> Plan | None:
        """Of the prefill worker that is chosen for a decode worker; None where there is none."""
        if decode.transfer is None or asked.request.stays_whole:
            return None
        protocol = decode.transfer.protocol
        if protocol not in asked.legs:
            asked.legs[protocol] = self._plan_leg(asked, protocol)
        return asked.legs[protocol]

    def _plan_leg(self, asked: Asked, protocol: str) -> Plan | None:
        pool = self._prefill_pool(asked, protocol)
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
            looks_up=self.rules.mode is Mode.AUTO,
        )

    # The verdict

    def _judge(self, asked: Asked, inputs: Inputs, entry: WorkerEntry, leg: Plan | None) -> Verdict:
        facts = self._facts(inputs, entry, leg)
        if asked.request.stays_whole:
            return forced(self.rules, facts, is_remote=False, reason=Reason.STAYS_WHOLE)
        if asked.attempt and entry.worker.prefills_alone and (leg is not None or self.rules.fallback):
            return forced(self.rules, facts, is_remote=False, reason=Reason.RETRIED)
        if leg is None:
            if not self.rules.fallback and decide(self.rules, facts).is_remote:
                raise NoWorkers(
                    f"No prefill worker can take a request for the model '{asked.request.model}', and decode "
                    "workers compute no prompts in their place: --disagg-fallback is off"
                )
            return forced(self.rules, facts, is_remote=False, reason=Reason.NO_PREFILL_WORKER)
        return decide(self.rules, facts)

    def _facts(self, inputs: Inputs, entry: WorkerEntry, leg: Plan | None) -> Facts:
        backlog = min(map(self._loads.prefill_tokens, leg.inputs.pool.slots)) if leg is not None else 0
        return Facts(
            prompt_tokens=inputs.num_tokens,
            cached_tokens=held_tokens(inputs, entry.slot),
            prefill_backlog_tokens=backlog,
            decode_usage=self._usage(inputs, entry) if self.rules.decode_usage_max is not None else None,
            times_ms=self._forecast(inputs, entry, leg) if leg and self.rules.mode is Mode.AUTO else None,
        )

    def _handed_over(self, asked: Asked, inputs: Inputs) -> list[float | None]:
        """For a policy that weighs times: each row as the rules would have it."""
        entries = map(self._workers.of_slot, inputs.pool.slots)
        return [self._handed_over_ms(asked, inputs, entry) for entry in entries]

    def _handed_over_ms(self, asked: Asked, inputs: Inputs, entry: WorkerEntry) -> float | None:
        worker = entry.worker
        if worker.role is not Role.DECODE or (leg := self._leg_for(asked, worker)) is None:
            return None
        verdict = self._judge(asked, inputs, entry, leg)
        if worker.prefills_alone and not verdict.is_remote:
            return None
        times = verdict.times_ms or self._forecast(inputs, entry, leg)
        return times["remote"]

    def _forecast(self, inputs: Inputs, entry: WorkerEntry, leg: Plan) -> dict[str, float]:
        now, num_tokens = inputs.now, inputs.num_tokens
        decode, prefill = self._side(inputs, entry, now), self._side(leg.inputs, leg.entry, now)
        lacking = num_tokens - decode.cached_tokens
        transfer_ms = self._transfers.of(link_of(entry.worker), lacking, now)
        return forecast(num_tokens, decode, prefill, transfer_ms)

    def _side(self, inputs: Inputs, entry: WorkerEntry, now: float) -> Side:
        times = self._timekeeper.of_worker(entry.slot, now)
        return Side(times=times, cached_tokens=held_tokens(inputs, entry.slot))

    def _usage(self, inputs: Inputs, entry: WorkerEntry) -> float | None:
        """Share of the decode worker's blocks that would be active, those that are not full included."""
        capacity = entry.worker.num_blocks
        if not capacity:
            return None
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
            self.rules,
            self._facts(plan.inputs, plan.entry, leg),
            is_remote=True,
            reason=Reason.CANNOT_PREFILL,
        )
        plan.pair(leg)
        return plan


def _computed_after(verdict: Verdict) -> float | None:
    """Milliseconds until the prefill worker should be done, where times were compared."""
    times = verdict.times_ms
    return times["remote_wait"] + times["remote_prefill"] if times else None
