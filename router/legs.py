"""Requests whose prompt one worker computes and another decodes: the order of their two legs, and what
follows when one of them fails.

What the legs say is in `hand_over`, bytes go through `exchange`, both workers were chosen and booked by the
core."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import NamedTuple, Protocol

from policies.types import Decision, Worker, WorkerId
from router.call import Call
from router.collector import Collector
from router.core.outcome import Outcome
from router.core.routing import RoutingCore
from router.errors import (
    HandOverRefused,
    PrefillFailed,
    PrefillRefused,
    RouterError,
    WorkerError,
    WorkerProtocolError,
    WorkerTimeout,
    WorkerUnavailable,
)
from router.exchange import Exchanges, Opened
from router.hand_over import PROTOCOLS, HandOver, HandOverProtocol, IncompleteAnswer, Leg
from router.limits import HAND_OVER_WARNINGS_MAX
from router.metrics import Metrics
from router.tasks import start_task
from router.wire.http1 import ResponseHead
from router.wire.usage import usage_of

_logger = logging.getLogger("kvgate.legs")

_RETRIED_STATUSES = (408, 429)
"""Of the client errors, those that another worker may not answer with."""


class EngineIds(Protocol):
    """Bootstrap servers of prefill workers, which name their engines."""

    async def engine_id(self, worker: Worker) -> str:
        """Raises WorkerError."""

    def forget(self, worker_id: WorkerId) -> None:
        """Its engine may be another one by now."""


class Computed(NamedTuple):
    """A prompt that a prefill worker has computed: what the decode worker is to be sent for it, and since
    when it waits."""

    leg: Leg
    at: float


class Legs:
    """`lease_seconds`: for so long a prefill worker keeps what it has computed."""

    def __init__(
        self,
        *,
        core: RoutingCore,
        exchanges: Exchanges,
        metrics: Metrics,
        engine_ids: EngineIds,
        max_retries: int,
        lease_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._core = core
        self._exchanges = exchanges
        self._metrics = metrics
        self._engine_ids = engine_ids
        self._max_retries = max_retries
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._draining: set[asyncio.Task[None]] = set()
        self._warned: set[tuple[WorkerId, str]] = set()

    async def run(self, call: Call, decision: Decision) -> None:
        """The whole request. Raises RouterError; what the core has booked is left to the caller."""
        assert decision.worker.transfer is not None
        protocol = PROTOCOLS[decision.worker.transfer.protocol]
        if protocol.is_concurrent:
            await self._run_at_once(call, decision, protocol)
        else:
            await self._run_in_turn(call, decision, protocol)

    def close(self) -> None:
        """Nobody waits any more for prefill answers that are still being read."""
        for task in self._draining:
            task.cancel()

    # One after the other

    async def _run_in_turn(self, call: Call, decision: Decision, protocol: HandOverProtocol) -> None:
        computed = await self._computed(call, decision, protocol)
        if computed is None:
            await self._exchanges.relay(call, decision.worker)
            return
        try:
            await self._decode(call, decision.worker, computed)
        except WorkerError as error:
            self._metrics.hand_over_failed(decision.worker.id, "decode", error.code)
            self._engine_ids.forget(call.prefill_worker_id)
            raise

    async def _decode(self, call: Call, worker: Worker, computed: Computed) -> None:
        """Sends the leg once, and within the lease: later its blocks may hold another prompt. Raises
        WorkerError."""
        opened = await self._exchanges.take(worker)
        now = self._clock()
        if now - computed.at >= self._lease_seconds:
            opened.connection.abort()
            raise HandOverRefused("The prefill worker keeps its KV no longer", code="lease_over")
        call.transfer_began_at = now
        try:
            await self._exchanges.relay_over(call, opened, computed.leg)
        except WorkerUnavailable as error:
            if opened.is_used and opened.connection.is_silent:
                # Most likely closed while it idled. No other request would be retried for that; this one
                # may have been read, and is asked again without what can be fetched only once.
                raise HandOverRefused(error.message, code="connection_closed") from None
            raise

    async def _computed(self, call: Call, decision: Decision, protocol: HandOverProtocol) -> Computed | None:
        """What the decode worker is to be sent when its prompt is computed; None when it computes it
        itself."""
        prefill: Decision | None = decision.prefill
        tried: set[WorkerId] = set()
        num_tries = 0
        while prefill is not None:
            worker, num_tries = prefill.worker, num_tries + 1
            try:
                leg = await self._prefill(call, decision.worker, worker, protocol)
                return Computed(leg, self._clock())
            except WorkerError as error:
                failure = error
            self._metrics.hand_over_failed(worker.id, "prefill", failure.code)
            self._engine_ids.forget(worker.id)
            tried |= self._ranks_beside(worker)
            if num_tries > self._max_retries:
                tried |= {view.worker.id for view in self._core.workers()}
            outcome = Outcome.TIMED_OUT if isinstance(failure, WorkerTimeout) else Outcome.WORKER_FAILED
            prefill = self._core.prefill_failed(call.id, outcome, now=self._clock(), exclude=tried)
        call.prefill_worker_id = ""
        if decision.verdict is not None:
            self._metrics.disagg_decided(decision.verdict)
        return None

    async def _prefill(self, call: Call, decode: Worker, worker: Worker, protocol: HandOverProtocol) -> Leg:
        """Raises WorkerError, or PrefillRefused for what the client is to blame for."""
        call.prefill_worker_id = worker.id
        hand_over = await self._hand_over(call, decode, worker, protocol)
        began_at = self._clock()
        answer = _checked(*await self._exchanges.collect(call, worker, protocol.prefill_leg(hand_over)))
        try:
            leg = protocol.decode_leg(hand_over, answer)
        except IncompleteAnswer as error:
            self._warn(worker, str(error))
            raise WorkerProtocolError(f"The prefill worker {worker.id}: {error}", code="incomplete") from None
        self._answered(call, worker, answer, began_at)
        return leg

    def _answered(self, call: Call, worker: Worker, answer: bytes, began_at: float) -> None:
        now = self._clock()
        self._metrics.prefill_leg(worker.id, now - began_at)
        usage = usage_of(answer)
        cached = self._core.prefill_answered(
            call.id,
            now=now,
            prompt_tokens=usage.prompt_tokens if usage is not None else None,
            cached_tokens=usage.cached_tokens if usage is not None else None,
        )
        if cached is not None:
            self._metrics.cached(worker.id, cached.expected, cached.reported)

    # Both at once

    async def _run_at_once(self, call: Call, decision: Decision, protocol: HandOverProtocol) -> None:
        """The decode worker waits for the prefill worker, and fails with it; so both connections are there
        before either is sent anything."""
        assert decision.prefill is not None
        decode, worker = decision.worker, decision.prefill.worker
        call.prefill_worker_id = worker.id
        hand_over = await self._hand_over(call, decode, worker, protocol)
        legs = protocol.prefill_leg(hand_over), protocol.decode_leg(hand_over, b"")
        del hand_over  # it holds the body, which a long stream has no need of
        try:
            opened = await self._exchanges.open(decode)
            place = await self._open_prefill(worker, opened)
            prefill = self._start_prefill(call, worker, place, legs[0])
            await self._relay_beside(call, opened, legs[1], prefill)
        except PrefillFailed:
            raise
        except WorkerError as error:
            self._metrics.hand_over_failed(decode.id, "decode", error.code)
            raise

    async def _open_prefill(self, worker: Worker, beside: Opened) -> Opened:
        try:
            return await self._exchanges.open(worker)
        except WorkerError as error:
            self._metrics.hand_over_failed(worker.id, "prefill", error.code)
            beside.connection.abort()
            raise PrefillFailed(error.message, code=error.code) from None
        except asyncio.CancelledError:
            beside.connection.abort()
            raise

    async def _relay_beside(self, call: Call, opened: Opened, leg: Leg, prefill: asyncio.Task[None]) -> None:
        """When the decode worker has not decoded, the prefill worker would wait for it in vain."""
        try:
            await self._exchanges.relay_over(call, opened, leg)
        finally:
            if not call.is_answered or call.status >= 400:
                prefill.cancel()

    def _start_prefill(self, call: Call, worker: Worker, place: Opened, leg: Leg) -> asyncio.Task[None]:
        """Its answer is read to its end, also when that of the decode worker was quicker."""
        collector = self._exchanges.send(call, place, leg)
        leg.body = b""
        task = start_task(self._drain(call, worker, collector), f"prefill leg of {call.id}")
        self._draining.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._draining.discard(task)
            collector.abort()  # where the task was cancelled before it had begun

        task.add_done_callback(ended)
        return task

    async def _drain(self, call: Call, worker: Worker, collector: Collector) -> None:
        began_at = self._clock()
        try:
            answer = _checked(*await self._exchanges.collected(collector))
        except RouterError as error:
            self._metrics.hand_over_failed(worker.id, "prefill", error.code)
            if not isinstance(error, PrefillRefused):
                error = PrefillFailed(f"The prefill worker {worker.id}: {error.message}", code=error.code)
            if call.relay is not None and not call.relay.begun:
                call.relay.give_up(error)
        else:
            self._answered(call, worker, answer, began_at)
            call.transfer_began_at = self._clock()

    # Both ways

    async def _hand_over(
        self, call: Call, decode: Worker, prefill: Worker, protocol: HandOverProtocol
    ) -> HandOver:
        engine_id = await self._engine_ids.engine_id(prefill) if protocol.asks_engine_id else ""
        return HandOver(
            body=call.request.body,
            members=call.members or {},
            endpoint=call.endpoint,
            request_id=call.leg_id(),
            number=secrets.randbits(63),
            prefill=prefill,
            decode=decode,
            engine_id=engine_id,
        )

    def _ranks_beside(self, worker: Worker) -> set[WorkerId]:
        return {view.worker.id for view in self._core.workers() if view.worker.url == worker.url}

    def _warn(self, worker: Worker, text: str) -> None:
        """Once for each thing: every request would say the same."""
        if (worker.id, text) in self._warned or len(self._warned) >= HAND_OVER_WARNINGS_MAX:
            return
        self._warned.add((worker.id, text))
        _logger.warning("prefill worker %s: %s", worker.id, text)


def _checked(head: ResponseHead, body: bytes) -> bytes:
    """The body of an answer that says that the prompt was computed. Raises RouterError."""
    if head.is_encoded:
        raise WorkerProtocolError("The prefill worker's answer is compressed", code="encoded")
    if 200 <= head.status < 300:
        return body
    if 400 <= head.status < 500 and head.status not in _RETRIED_STATUSES:
        raise PrefillRefused(head.status, body)
    raise WorkerUnavailable(f"The prefill worker answered {head.status}", code=f"status_{head.status}")
