"""A fleet on a virtual clock: the gateway's own decision core, modelled engines, clients that follow a trace.

What the gateway tells its core and when is done here in the same way: a request is routed when it comes, its
first token and end are told as they happen, its progress once a second; KV events arrive late or never, and
a worker that dies takes its requests along, of which those without a first token are routed again. What two
workers share goes through `legs`.
"""

from __future__ import annotations

import random

from indexer.blocks import HASH_MASK, BlockHash, HashSpace, Unit
from loadgen.sequences import EngineSequence
from loadgen.sim.agenda import Agenda
from loadgen.sim.clients import ClosedLoop, OpenLoop
from loadgen.sim.events import EventChannel
from loadgen.sim.legs import Legs
from loadgen.sim.outcomes import RequestOutcome, Run
from loadgen.sim.settings import PoolSettings, SimSettings
from loadgen.sim.wire import ADAPTERS, ENGINE
from loadgen.sim.worker import SimWorker
from loadgen.traces import Trace, TraceRequest
from policies.base import Policy
from policies.types import Role, RoutingRequest, ServedModel, Transfer, Worker, WorkerId
from router.core.disagg import DisaggRules
from router.core.health import HealthSign
from router.core.outcome import Outcome
from router.core.prompt import Prompt
from router.core.routing import RoutingCore
from router.errors import NoWorkers

MODEL = "simulated"
STEPS_AT_ONCE = 1 << 30
"""No bound of its own: a run of steps ends where the batch changes."""
HAND_OVER = "nixl"
"""The protocol that workers of the pools speak: the prefill leg first, then the decode leg."""
RETRIES_MAX = 2
"""As the gateway's default."""
PROGRESS_SECONDS = 1.0
"""How often the gateway tells its core how far streams have come, and lets it expire what is due."""
_SCATTER = 0x9E3779B97F4A7C15
"""Odd, so that different ids stay different hashes; 2^64 over the golden ratio spreads neighbours."""


class Simulation:
    """One run of one policy; `run` may be called once."""

    def __init__(self, trace: Trace, policy: Policy, settings: SimSettings) -> None:
        self._trace = trace
        self._settings = settings
        seed = settings.seed
        pools = settings.pools
        self.core = RoutingCore(
            policy=policy,
            prefill_policy=pools.prefill_policy if pools else None,
            decode_policy=pools.decode_policy if pools else None,
            disagg=pools.rules if pools else DisaggRules(),
            seed=seed,
            adapters=ADAPTERS,
        )
        self.workers = [
            SimWorker(name, slot, settings.engine, random.Random(f"{seed} engine {slot}"), role)
            for slot, (name, role) in enumerate(_names_and_roles(settings))
        ]
        self.channel = EventChannel(
            self.core.feed,
            delay=settings.event_delay,
            loss=settings.event_loss,
            rng=random.Random(f"{seed} events"),
        )
        self._deaths = random.Random(f"{seed} deaths")
        self._space = HashSpace(MODEL, settings.engine.block_tokens)
        self._clients = (
            ClosedLoop(trace.requests, settings.concurrency)
            if settings.concurrency
            else OpenLoop(trace.requests, settings.rate_scale)
        )
        self.outcomes = [
            RequestOutcome(0.0, request.input_tokens, request.output_tokens) for request in trace.requests
        ]
        self._num_left = len(trace.requests)
        self._agenda = Agenda()
        self._expires_at: float | None = 0.0
        self.legs = self._make_legs(pools) if pools else None

    def run(self) -> Run:
        """Until every request has ended."""
        self._begin()
        now = 0.0
        while self._num_left:
            now = self._agenda.carry_out_next()
        busy = [worker.total_busy_seconds for worker in self.workers]
        return Run(self.outcomes, busy, now)

    def _make_legs(self, pools: PoolSettings) -> Legs:
        return Legs(
            core=self.core,
            agenda=self._agenda,
            engines=self,
            retry=self._route,
            workers=self.workers,
            outcomes=self.outcomes,
            network=pools.network,
        )

    def _begin(self) -> None:
        engine = self._settings.engine
        self.core.reconcile(
            [
                Worker(
                    id=worker.id,
                    url=f"http://{worker.id}",
                    models=(ServedModel(MODEL),),
                    engine=ENGINE,
                    block_tokens=engine.block_tokens,
                    num_blocks=engine.num_blocks,
                    publishes_events=True,
                    replays_events=self._settings.event_replay,
                    role=worker.role,
                    transfer=None if worker.role is Role.BOTH else Transfer(protocol=HAND_OVER),
                )
                for worker in self.workers
            ],
            now=0.0,
        )
        for worker in self.workers:
            assert self.core.slot_of(worker.id) == worker.slot, "a new core numbers workers in their order"
            self.channel.connect(worker, 0.0)
            self._plan_death(worker, 0.0)
        for at, number in self._clients.begin():
            self._agenda.plan(at, self._send, number)
        self._agenda.plan(PROGRESS_SECONDS, self._tell_progress, None)

    # Requests

    def _send(self, number: int, now: float) -> None:
        self.outcomes[number].sent_at = now
        self._route(number, now, [])

    def _route(self, number: int, now: float, tried: list[WorkerId]) -> None:
        """To the worker that the core chooses; to another one if that cannot be reached."""
        request = self._trace.requests[number]
        chain = self._chain(request)
        prompt = Prompt(request.input_tokens, Unit.TOKENS, {self._space: chain}, exact=True)
        asked = RoutingRequest(
            id=str(number),
            model=MODEL,
            num_prompt_tokens=request.input_tokens,
            session=request.session or None,
            stream=True,
        )
        outcome = self.outcomes[number]
        self.channel.deliver(now)
        while len(tried) <= RETRIES_MAX:
            outcome.num_attempts += 1
            try:
                decision = self.core.route(asked, prompt, now=now, exclude=tried, attempt=len(tried))
            except NoWorkers:
                break
            if self.legs and decision.verdict:
                self.legs.decided(number, decision, chain)
                if decision.prefill:
                    self.legs.begin(decision, number, chain, request.output_tokens, tried)
                    return
            worker = self.workers[decision.slot]
            if worker.is_up:
                self.submit(worker, self._sequence(number, request, chain), number, now)
                return
            self._fail_attempt(worker, number, now)
            tried.append(worker.id)
        self._end(number, now)

    def _chain(self, request: TraceRequest) -> list[BlockHash]:
        """The router's hashes of the prompt's complete blocks."""
        num_full = request.input_tokens // self._space.block_tokens
        return [(block + 1) * _SCATTER & HASH_MASK for block in request.hash_ids[:num_full]]

    def _sequence(self, number: int, request: TraceRequest, chain: list[BlockHash]) -> EngineSequence:
        return EngineSequence(
            id=str(number),
            num_prompt_tokens=request.input_tokens,
            max_tokens=request.output_tokens,
            block_tokens=self._space.block_tokens,
            hashes=chain,
        )

    def _end(self, number: int, now: float) -> None:
        """However it ended: the client goes on."""
        self._num_left -= 1
        following = self._clients.answered(number, now)
        if following is not None:
            at, number = following
            self._agenda.plan(at, self._send, number)

    # Engines

    def submit(self, worker: SimWorker, sequence: EngineSequence, number: int, now: float) -> None:
        """Queues it at the engine, which is woken if it is idle."""
        engine = worker.engine
        worker.requests[sequence] = number
        somebody_waits = engine.num_waiting > 0
        engine.enqueue(sequence)
        if worker.is_idle:
            self._step(worker, now)
        elif not somebody_waits and (ends_at := engine.shorten(now)) is not None:
            self._plan_step_end(worker, ends_at)

    def wake(self, worker: SimWorker, now: float) -> None:
        """Something was freed there: what waited for room may begin."""
        if worker.is_idle:
            self._step(worker, now)

    def _step(self, worker: SimWorker, now: float) -> None:
        ends_at = worker.engine.start_step(now, STEPS_AT_ONCE)
        worker.is_idle = ends_at is None
        if ends_at is not None:
            self._plan_step_end(worker, ends_at)

    def _plan_step_end(self, worker: SimWorker, at: float) -> None:
        worker.wakes += 1
        worker.step_ends_at = at
        self._agenda.plan(at, self._finish_step, (worker, worker.wakes))

    def _finish_step(self, subject: tuple[SimWorker, int], now: float) -> None:
        worker, wake = subject
        if wake != worker.wakes:
            return
        output = worker.engine.finish_step()
        is_first_leg = worker.role is Role.PREFILL
        if not is_first_leg:
            for sequence in output.started:
                self._note_first_token(sequence, worker.requests[sequence], now)
        if output.events:
            self.channel.send(worker, worker.publish(output.events, now))
        for sequence in output.finished:
            number = worker.requests.pop(sequence)
            if is_first_leg:
                self._answer_prefill(number, now)
            else:
                self._note_end(sequence, number, now)
        if worker.requests:
            self._step(worker, now)
        else:
            worker.is_idle = True

    def _answer_prefill(self, number: int, now: float) -> None:
        assert self.legs is not None
        self.legs.prefill_answered(number, now)

    def _note_first_token(self, sequence: EngineSequence, number: int, now: float) -> None:
        outcome = self.outcomes[number]
        outcome.first_token_at = now
        if not (outcome.pair and outcome.pair.is_handed_over):
            outcome.cached_tokens = sequence.cached_tokens or 0
        self.core.first_token(sequence.id, now=now)

    def _note_end(self, sequence: EngineSequence, number: int, now: float) -> None:
        self._tell_output(sequence, now)
        self.core.observe_usage(
            sequence.id,
            prompt_tokens=sequence.num_prompt_tokens,
            cached_tokens=sequence.cached_tokens,
            now=now,
        )
        self.core.finish(sequence.id, Outcome.DONE, now=now)
        self.outcomes[number].ended_at = now
        self._end(number, now)

    # Time

    def _tell_progress(self, _subject: None, now: float) -> None:
        for worker in self.workers:
            for sequence in worker.engine.decoding():
                self._tell_output(sequence, now)
        if self._expires_at is not None and now >= self._expires_at:
            self._expires_at = self.core.expire(now=now)
        self._agenda.plan(now + PROGRESS_SECONDS, self._tell_progress, None)

    def _tell_output(self, sequence: EngineSequence, now: float) -> None:
        """What was generated since it was told last."""
        if num_new := sequence.num_generated - sequence.num_told:
            self.core.output_tokens(sequence.id, num_new, now=now)
            sequence.num_told = sequence.num_generated

    # Workers that die and come back

    def _plan_death(self, worker: SimWorker, now: float) -> None:
        if mean := self._settings.restart_every:
            self._agenda.plan(now + self._deaths.expovariate(1 / mean), self._die, worker)

    def _die(self, worker: SimWorker, now: float) -> None:
        """Streams that have begun break off; the others are tried elsewhere."""
        lost = worker.die()
        self.channel.disconnect(worker)
        self.core.observe_health(worker.id, HealthSign.CONNECT_FAILED, now=now)
        self._agenda.plan(now + self._settings.downtime, self._come_back, worker)
        if worker.role is Role.PREFILL:
            assert self.legs is not None
            self.legs.prefill_worker_died(worker, lost, now)
            return
        for number in lost:
            self.core.finish(str(number), Outcome.WORKER_FAILED, now=now)
        for number in lost:
            if self.outcomes[number].first_token_at is None:
                self._route(number, now, [worker.id])
            else:
                self._end(number, now)

    def _fail_attempt(self, worker: SimWorker, number: int, now: float) -> None:
        self.core.finish(str(number), Outcome.WORKER_FAILED, now=now)
        self.core.observe_health(worker.id, HealthSign.CONNECT_FAILED, now=now)

    def _come_back(self, worker: SimWorker, now: float) -> None:
        worker.come_back()
        self.core.observe_health(worker.id, HealthSign.RESTARTED, now=now)
        self.channel.connect(worker, now)
        self._plan_death(worker, now)


def _names_and_roles(settings: SimSettings) -> list[tuple[WorkerId, Role]]:
    """Prefill workers, decode workers, whole ones."""
    pools = settings.pools
    numbers = [
        ("p", Role.PREFILL, pools.num_prefill if pools else 0),
        ("d", Role.DECODE, pools.num_decode if pools else 0),
        ("w", Role.BOTH, settings.num_workers),
    ]
    return [(f"{letter}{i}", role) for letter, role, number in numbers for i in range(number)]
