"""One request from first byte to last: admit, understand, decide, relay, account.

Connections, relaying and parsing live in their own modules; here is the order of things, and what happens
when a step fails.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Mapping
from typing import Protocol

import orjson

from policies.types import Decision, Worker, WorkerId
from router.access_log import access_log
from router.auth import ClientKeys
from router.call import Call, refusal_fields
from router.client_connection import ClientConnection
from router.config import Settings
from router.core.catalogue import Resolution
from router.core.outcome import Outcome
from router.core.retries import may_retry
from router.core.routing import RoutingCore
from router.dialing import Dialer
from router.errors import (
    BadRequest,
    HandOverRefused,
    LoopDetected,
    MethodNotAllowed,
    NotSupported,
    NoWorkers,
    Overloaded,
    PrefillFailed,
    RouterError,
    UnknownModel,
    UnknownPath,
    WorkerError,
)
from router.exchange import Exchanges
from router.hand_over import PROTOCOLS, refuse_gateway_fields, why_whole
from router.legs import EngineIds, Legs
from router.limits import GATEWAYS_IN_A_ROW, RelayLimits
from router.metrics import Metrics
from router.request import Request
from router.stored_responses import StoredResponses
from router.tokens.base import TokenSource
from router.upstream import Upstream
from router.wire.endpoints import EndpointKind, lookup, response_id
from router.wire.endpoints import Protocol as WireProtocol
from router.wire.multipart import model_of_form
from router.wire.openai import ParsedBody, parse_body
from router.wire.sessions import session_of
from router.wire.splice import members_of

_OPEN_KINDS = frozenset((EndpointKind.LIVE, EndpointKind.READY))
"""What is answered without a key: a load balancer in front has none."""


class FleetHooks(Protocol):
    """What a proxy asks of the fleet around the core."""

    def key_of(self, worker: Worker) -> str | None:
        """The API key to show to that worker, if there is one."""

    def model_entries(self) -> list[dict[str, object]]:
        """The union of the workers' entries in `/v1/models`."""

    async def reprobe(self, model: str) -> None:
        """Look whether a worker serves `model` by now; limited in rate."""

    def has_pending(self) -> bool:
        """Whether a configured worker has not answered yet."""

    def suspect(self, worker_id: WorkerId) -> None:
        """Connecting failed: probe it soon."""

    def is_ready(self) -> bool:
        """Whether at least one worker is usable, and the gateway is not draining."""


class Proxy:
    """The server's Handler. `clock` is monotonic seconds."""

    def __init__(
        self,
        *,
        core: RoutingCore,
        settings: Settings,
        tokens: TokenSource,
        metrics: Metrics,
        clock: Callable[[], float],
        fleet: FleetHooks,
        dialer: Dialer,
        engine_ids: EngineIds,
        limits: RelayLimits | None = None,
    ) -> None:
        self.core = core
        self.settings = settings
        self.metrics = metrics
        self.clock = clock
        self.limits = limits or RelayLimits.from_settings(settings)
        self.access_log = access_log(settings.access_log)
        self.stored_responses = StoredResponses()
        self.upstream = Upstream(self.limits, clock, dialer, fleet.key_of)
        self._tokens = tokens
        self._fleet = fleet
        self._client_keys = ClientKeys(settings.api_key)
        self._id_prefix = uuid.uuid4().hex[:8]
        self._ids = itertools.count()
        self._via = uuid.uuid4().hex.encode()
        """What this gateway is called in the requests that it sends."""
        self._exchanges = Exchanges(
            core=core,
            upstream=self.upstream,
            client_keys=self._client_keys,
            suspects=fleet,
            limits=self.limits,
            clock=clock,
            via=self._via,
        )
        self.legs = Legs(
            core=core,
            exchanges=self._exchanges,
            metrics=metrics,
            engine_ids=engine_ids,
            max_retries=settings.max_retries,
            lease_seconds=settings.hand_over_lease,
            clock=clock,
        )
        self._own_answers: Mapping[EndpointKind, Callable[[Call], tuple[int, bytes]]] = {
            EndpointKind.LIVE: lambda call: (200, b'{"status":"ok"}'),
            EndpointKind.READY: self._readiness,
            EndpointKind.MODELS: self._models,
            EndpointKind.MODEL: self._model,
        }

    # The server's Handler

    def admit(self, request: Request, *, is_surplus: bool) -> None:
        """Judge a request by its head, before its body is collected. Raises RouterError.

        A gateway that has too many connections still says that it lives: else it would be restarted for that.
        """
        head = request.head
        assert head is not None
        endpoint = lookup(head.path)
        if is_surplus and (endpoint is None or endpoint.kind is not EndpointKind.LIVE):
            raise Overloaded("Too many connections")
        has_tunnel = endpoint is not None and endpoint.kind is EndpointKind.TUNNEL
        if head.is_websocket and not has_tunnel:
            raise NotSupported(f"This gateway opens no WebSocket at {head.path}")
        if endpoint is None or endpoint.kind not in _OPEN_KINDS:
            self._client_keys.check(head)
        if endpoint is None:
            raise UnknownPath(f"This gateway does not serve {head.path}")
        if head.via:
            self._check_via(head.via)
        method = head.method.decode()
        if method not in endpoint.methods:
            raise MethodNotAllowed(method, endpoint.methods)
        if has_tunnel and not head.is_websocket:
            raise BadRequest(f"{head.path} is for WebSockets: send the headers that open one")
        request.endpoint = endpoint

    def _check_via(self, via: bytes) -> None:
        """A request that comes back would go round until every connection is taken."""
        passed = via.replace(b" ", b"").split(b",")
        if self._via in passed:
            raise LoopDetected("The request came back: one of this gateway's worker URLs leads to itself")
        if len(passed) >= GATEWAYS_IN_A_ROW:
            raise LoopDetected(
                f"The request has passed {len(passed)} gateways: their worker URLs form a loop"
            )

    async def handle(self, request: Request, client: ClientConnection) -> None:
        """Answer one request. Cancelled when its client leaves."""
        call = Call(self, f"{self._id_prefix}-{next(self._ids):x}", request, client)
        if own_answer := self._own_answers.get(call.endpoint.kind):
            client.respond(*own_answer(call))
            return
        try:
            await self._understand(call)
            await self._serve(call)
        except RouterError as error:
            call.failed(error)
        finally:
            call.ended(self.clock())

    def failed(self, error: RouterError) -> None:
        self.metrics.error(error.code)

    def refused(self, request: Request, error: RouterError) -> None:
        if self.access_log is not None:
            self.access_log(refusal_fields(request, error, self.clock()))

    def crashed(self) -> None:
        self.metrics.error("crashed")

    # What does it ask for?

    async def _understand(self, call: Call) -> None:
        """Find the model, and the prompt where the policy reads it."""
        if call.endpoint.kind is EndpointKind.STORED_RESPONSE:
            self._pin(call, response_id(call.head.path))
            return
        parsed = self._parse(call)
        if self.core.has_pools:
            self._consider_split(call)
        if self.core.needs.session:
            call.session = session_of(call.head.forward, parsed)
        resolution = await self._resolve(_model_of(call, parsed))
        call.model = call.model or resolution.model
        if parsed is None:
            return
        call.stream = parsed.stream
        if parsed.previous_response_id is not None:
            self._pin(call, parsed.previous_response_id)
        if parsed.prompt and self.core.needs.overlap:
            started_at = self.clock()
            call.prompt = await self._tokens.prompt(parsed, call.endpoint, resolution)
            self.metrics.stage("tokens", self.clock() - started_at)

    def _consider_split(self, call: Call) -> None:
        """Whether two workers may share it. Raises BadRequest for what only a gateway may say."""
        endpoint = call.endpoint
        is_json = endpoint.kind is EndpointKind.INFERENCE and not call.head.is_encoded
        body = call.request.body if is_json else b""
        call.members = members_of(body)
        refuse_gateway_fields(body, call.members, call.head)
        protocols = self.core.hand_over_protocols
        takes_batches = all(PROTOCOLS[name].takes_batches for name in protocols)
        call.stays_whole = why_whole(call.members, endpoint, protocols, takes_batches)

    def _parse(self, call: Call) -> ParsedBody | None:
        """None when nothing in the body can change the decision: then it is not even read. Nor is what is
        compressed."""
        endpoint, body = call.endpoint, call.request.body
        if endpoint.kind is not EndpointKind.INFERENCE or call.head.is_encoded:
            return None
        needs = self.core.needs
        by_prompt = endpoint.routed_by_prompt and (needs.overlap or needs.session)
        by_store = endpoint.protocol is WireProtocol.RESPONSES and b'"previous_response_id"' in body
        is_simple = len(self.core.models()) <= 1 and not self.core.has_pools
        if not by_prompt and not by_store and is_simple:
            return None
        started_at = self.clock()
        parsed = parse_body(body, endpoint)
        self.metrics.stage("parse", self.clock() - started_at)
        return parsed

    async def _resolve(self, model: str | None) -> Resolution:
        """Raises UnknownModel after having looked once more: adapters are loaded at any time."""
        try:
            return self.core.resolve(model)
        except UnknownModel:
            await self._fleet.reprobe(model or "")
        try:
            return self.core.resolve(model)
        except UnknownModel:
            if self._fleet.has_pending():
                raise NoWorkers(f"No worker serves '{model}' yet; some have not answered so far") from None
            raise

    def _pin(self, call: Call, stored_id: str) -> None:
        """A stored response is known to one worker; an unknown one may go anywhere, to be refused there."""
        place = self.stored_responses.find(stored_id)
        if place is not None and self.core.worker(place.worker_id) is not None:
            call.pinned_to, call.model = place
        elif not call.model:
            call.model = self._any_model()

    def _any_model(self) -> str:
        models = self.core.models()
        return models[0] if models else self.core.resolve(None).model

    # Who answers it?

    async def _serve(self, call: Call) -> None:
        """Attempts on different workers until one answers. Raises the last one's error."""
        tried = self._all_but(call.pinned_to) if call.pinned_to is not None else set()
        others: set[WorkerId] = set()
        failure: WorkerError | None = None
        while True:
            try:
                decision = self._decide(call, tried | others)
            except NoWorkers:
                if failure is not None:
                    raise failure from None
                raise
            try:
                if decision.prefill is None:
                    await self._exchanges.relay(call, decision.worker)
                else:
                    await self.legs.run(call, decision)
                return
            except WorkerError as error:
                failure = error
                if not self._may_retry(call, error, decision.worker):
                    raise
            self.core.finish(call.id, Outcome.WORKER_FAILED, now=self.clock())
            failed = self._who_failed(decision, failure)
            others = self._all_but(decision.worker.id) if failed is None else set()
            if failed is not None:
                self.metrics.retry(failed.id, failure.code)
                tried |= self._ranks_beside(failed)
            call.attempt += 1

    def _decide(self, call: Call, tried: set[WorkerId]) -> Decision:
        now = self.clock()
        decision = self.core.route(
            call.routing_request(), call.prompt, now=now, exclude=tried, attempt=call.attempt
        )
        call.decided(decision)
        self.metrics.stage("route", self.clock() - now)
        self.metrics.request_started(decision.worker.id, call.model)
        self.metrics.overlap_lost(decision.worker.id, int(decision.details["overlap_lost_tokens"]))
        if decision.verdict is not None:
            self.metrics.disagg_decided(decision.verdict)
        return decision

    def _who_failed(self, decision: Decision, error: WorkerError) -> Worker | None:
        """Nobody, where the same decode worker may well answer without a hand-over."""
        if isinstance(error, HandOverRefused) and decision.worker.prefills_alone:
            return None
        if isinstance(error, PrefillFailed) and decision.prefill is not None:
            return decision.prefill.worker
        return decision.worker

    def _may_retry(self, call: Call, error: WorkerError, worker: Worker) -> bool:
        if isinstance(error, HandOverRefused) and worker.prefills_alone:
            return True  # once: without a hand-over there is none to refuse
        return may_retry(
            attempt=call.attempt,
            max_retries=self.settings.max_retries,
            retryable=error.retryable,
            begun=call.relay is not None and call.relay.committed,
        )

    def _all_but(self, worker_id: WorkerId) -> set[WorkerId]:
        return {view.worker.id for view in self.core.workers()} - {worker_id}

    def _ranks_beside(self, worker: Worker) -> set[WorkerId]:
        """Itself and those that share its server, and with it most of what may have failed."""
        return {worker.id} | {view.worker.id for view in self.core.workers() if view.worker.url == worker.url}

    # Answers of the gateway's own

    def _readiness(self, call: Call) -> tuple[int, bytes]:
        return (200, b'{"status":"ready"}') if self._fleet.is_ready() else (503, b'{"status":"not ready"}')

    def _models(self, call: Call) -> tuple[int, bytes]:
        return 200, orjson.dumps({"object": "list", "data": self._fleet.model_entries()})

    def _model(self, call: Call) -> tuple[int, bytes]:
        wanted = call.head.path.partition("/models/")[2]
        for entry in self._fleet.model_entries():
            if entry.get("id") == wanted:
                return 200, orjson.dumps(entry)
        error = UnknownModel(wanted, self.core.models())
        return error.status, error.body()


def _model_of(call: Call, parsed: ParsedBody | None) -> str | None:
    if parsed is not None:
        return parsed.model
    if call.endpoint.kind is EndpointKind.MULTIPART:
        return model_of_form(call.request.body)
    if call.endpoint.kind is EndpointKind.TUNNEL:
        return call.head.in_query("model") or None
    return None
