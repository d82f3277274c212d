"""Two workers for one request, in the order of vLLM's NIXL connector: the prefill worker computes the prompt
and one token, its answer goes with the request to the decode worker, which fetches what it lacks and goes on.

Failures are met as the gateway meets them. A prefill worker that dies is replaced by another one, or by the
decode worker itself; a decode worker whose transfer breaks computes the prompt. What happens to a decode
worker's own requests when it dies is `simulation`'s, as with any worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from indexer.blocks import BlockHash
from loadgen.sequences import EngineSequence
from loadgen.sim.agenda import Agenda
from loadgen.sim.foresight import first_token_seconds, handed_over_seconds, held_tokens, stall_seconds
from loadgen.sim.outcomes import PairOutcome, RequestOutcome
from loadgen.sim.worker import SimWorker
from loadgen.transfer import TransferModel, transfer
from policies.types import Decision, Role, WorkerId
from router.core.health import HealthSign
from router.core.outcome import Outcome
from router.core.routing import RoutingCore

HELD_SECONDS = 30.0
"""How long a prefill worker keeps blocks that nobody comes for: the lease of vLLM 0.32's connector."""


class Engines(Protocol):
    """What legs ask of the simulation."""

    def submit(self, worker: SimWorker, sequence: EngineSequence, number: int, now: float) -> None:
        """Queues it at the engine, which is woken if it is idle."""
        ...

    def wake(self, worker: SimWorker, now: float) -> None:
        """Something was freed there."""
        ...


Retry = Callable[[int, float, list[WorkerId]], None]
"""Routes a request anew: its number, the time, the workers that it was tried on."""


@dataclass(slots=True, eq=False, kw_only=True)
class HandOver:
    """One request on its way. `prefill`, `leg` are None until a prefill worker has it; `answer`: what the
    decode worker waits for."""

    number: int
    decode: SimWorker
    num_prompt_tokens: int
    max_tokens: int
    chain: Sequence[BlockHash]
    tried: list[WorkerId]
    """Decode workers of earlier attempts."""
    tried_prefill: list[WorkerId] = field(default_factory=list)
    prefill: SimWorker | None = None
    leg: EngineSequence | None = None
    answer: EngineSequence | None = None

    @property
    def id(self) -> str:
        return str(self.number)

    def sequence(self, max_tokens: int, *, is_handed_over: bool = False) -> EngineSequence:
        return EngineSequence(
            id=self.id,
            num_prompt_tokens=self.num_prompt_tokens,
            max_tokens=max_tokens,
            block_tokens=self.decode.settings.block_tokens,
            hashes=self.chain,
            is_handed_over=is_handed_over,
        )


class Legs:
    """All requests that two workers share."""

    def __init__(
        self,
        *,
        core: RoutingCore,
        agenda: Agenda,
        engines: Engines,
        retry: Retry,
        workers: Sequence[SimWorker],
        outcomes: Sequence[RequestOutcome],
        network: TransferModel,
    ) -> None:
        self._core = core
        self._agenda = agenda
        self._engines = engines
        self._retry = retry
        self._workers = workers
        self._outcomes = outcomes
        self._network = network
        self._prefilling: dict[int, HandOver] = {}
        self._carried: dict[HandOver, None] = {}

    @property
    def num_under_way(self) -> int:
        return len(self._prefilling) + len(self._carried)

    # What is decided

    def decided(self, number: int, decision: Decision, chain: Sequence[BlockHash]) -> None:
        """Notes the verdict, and what the other way would have taken."""
        verdict = decision.verdict
        assert verdict is not None
        decode = self._workers[decision.slot]
        self._outcomes[number].pair = PairOutcome(
            decided_at=decision.now,
            is_remote=verdict.is_remote,
            reason=verdict.reason,
            other_seconds=self._other_seconds(decision, chain),
            stall_seconds=stall_seconds(decode, decision.num_prompt_tokens, chain),
        )

    def _other_seconds(self, decision: Decision, chain: Sequence[BlockHash]) -> float | None:
        """None where a worker that is down has a part in it, or no prefill worker is up."""
        decode, num_tokens, now = self._workers[decision.slot], decision.num_prompt_tokens, decision.now
        if not decode.is_up:
            return None
        if decision.prefill is not None:
            return first_token_seconds(decode, num_tokens, chain, now)
        return min(
            (
                handed_over_seconds(prefill, decode, self._network, num_tokens, chain, now)
                for prefill in self._workers
                if prefill.role is Role.PREFILL and prefill.is_up
            ),
            default=None,
        )

    # The prefill leg

    def begin(
        self,
        decision: Decision,
        number: int,
        chain: Sequence[BlockHash],
        max_tokens: int,
        tried: list[WorkerId],
    ) -> None:
        """The core has booked both workers."""
        hand_over = HandOver(
            number=number,
            decode=self._workers[decision.slot],
            num_prompt_tokens=decision.num_prompt_tokens,
            max_tokens=max_tokens,
            chain=chain,
            tried=tried,
        )
        self._send(hand_over, decision.prefill, decision.now)

    def _send(self, hand_over: HandOver, leg: Decision | None, now: float) -> None:
        """To the prefill worker that was chosen, to another if that cannot be reached, to the decode worker
        when none is left."""
        while leg is not None:
            worker = self._workers[leg.slot]
            if worker.is_up:
                hand_over.prefill = worker
                hand_over.leg = hand_over.sequence(1, is_handed_over=True)
                self._prefilling[hand_over.number] = hand_over
                self._engines.submit(worker, hand_over.leg, hand_over.number, now)
                return
            self._core.observe_health(worker.id, HealthSign.CONNECT_FAILED, now=now)
            leg = self._another(hand_over, worker, now)
        self._compute_there(hand_over, now)

    def _another(self, hand_over: HandOver, failed: SimWorker, now: float) -> Decision | None:
        hand_over.tried_prefill.append(failed.id)
        return self._core.prefill_failed(
            hand_over.id, Outcome.WORKER_FAILED, now=now, exclude=hand_over.tried_prefill
        )

    def _compute_there(self, hand_over: HandOver, now: float) -> None:
        """The decode worker computes the prompt itself."""
        if hand_over.decode.is_up:
            sequence = hand_over.sequence(hand_over.max_tokens)
            self._engines.submit(hand_over.decode, sequence, hand_over.number, now)
        else:
            self._give_up_decode(hand_over, now)

    def _give_up_decode(self, hand_over: HandOver, now: float) -> None:
        """It died before anything was sent there."""
        self._core.finish(hand_over.id, Outcome.WORKER_FAILED, now=now)
        self._core.observe_health(hand_over.decode.id, HealthSign.CONNECT_FAILED, now=now)
        self._retry(hand_over.number, now, [*hand_over.tried, hand_over.decode.id])

    # The transfer, and the decode leg

    def prefill_answered(self, number: int, now: float) -> None:
        """The prefill worker has finished the leg, and holds its blocks."""
        hand_over = self._prefilling.pop(number)
        leg = hand_over.leg
        assert leg is not None
        self._core.prefill_answered(
            hand_over.id, now=now, prompt_tokens=leg.num_prompt_tokens, cached_tokens=leg.cached_tokens
        )
        if hand_over.decode.is_up:
            self._fetch(hand_over, leg, now)
        else:
            self._agenda.plan(now + HELD_SECONDS, self._release, hand_over)
            self._give_up_decode(hand_over, now)

    def _fetch(self, hand_over: HandOver, leg: EngineSequence, now: float) -> None:
        prefill, decode = hand_over.prefill, hand_over.decode
        assert prefill is not None
        answer = hand_over.answer = hand_over.sequence(hand_over.max_tokens)
        answer.transferred_tokens = answer.num_prompt_tokens
        decode.requests[answer] = hand_over.number
        lacking = max(0, answer.num_prompt_tokens - held_tokens(decode.engine, hand_over.chain))
        self._note_transfer(hand_over.number, lacking, leg)
        self._carried[hand_over] = None
        arrives_at = transfer(self._network, lacking, prefill.port, decode.port, now=now)
        self._agenda.plan(arrives_at, self._arrive, hand_over)

    def _note_transfer(self, number: int, num_tokens: int, leg: EngineSequence) -> None:
        outcome = self._outcomes[number]
        outcome.cached_tokens = leg.cached_tokens or 0
        assert outcome.pair is not None
        outcome.pair.is_handed_over = True
        outcome.pair.transferred_tokens = num_tokens

    def _arrive(self, hand_over: HandOver, now: float) -> None:
        if hand_over not in self._carried:
            return  # the prefill worker died meanwhile
        del self._carried[hand_over]
        self._release(hand_over, now)
        answer, decode = hand_over.answer, hand_over.decode
        assert answer is not None
        if answer in decode.requests:  # else the decode worker died meanwhile
            self._engines.submit(decode, answer, hand_over.number, now)

    def _release(self, hand_over: HandOver, now: float) -> None:
        """The prefill worker's blocks are free again; one that was born since has none of them."""
        prefill, leg = hand_over.prefill, hand_over.leg
        assert prefill is not None
        assert leg is not None
        if prefill.engine.release(leg):
            self._engines.wake(prefill, now)

    # Prefill workers that die

    def prefill_worker_died(self, worker: SimWorker, lost: Sequence[int], now: float) -> None:
        """`lost`: the requests whose prompts it was computing. What was being fetched from it is lost too."""
        for number in lost:
            hand_over = self._prefilling.pop(number)
            self._send(hand_over, self._another(hand_over, worker, now), now)
        for hand_over in [each for each in self._carried if each.prefill is worker]:
            del self._carried[hand_over]
            answer = hand_over.answer
            assert answer is not None
            if hand_over.decode.requests.pop(answer, None) is not None:
                self._note_broken(hand_over.number)
                self._compute_there(hand_over, now)

    def _note_broken(self, number: int) -> None:
        pair = self._outcomes[number].pair
        assert pair is not None
        pair.is_handed_over = False
        pair.transferred_tokens = 0
