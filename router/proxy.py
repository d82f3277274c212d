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

from policies.types import Worker, WorkerId
from router.access_log import access_log
from router.auth import ClientKeys
from router.call import Call, refusal_fields
from router.client_connection import ClientConnection
from router.config import Settings
from router.core.catalogue import Resolution
from router.core.health import HealthSign
from router.core.outcome import Outcome
from router.core.retries import may_retry
from router.core.routing import RoutingCore
from router.dialing import Dialer
from router.errors import (
    BadRequest,
    LoopDetected,
    MethodNotAllowed,
    NotSupported,
    NoWorkers,
    Overloaded,
    RouterError,
    UnknownModel,
    UnknownPath,
    WorkerError,
    WorkerUnavailable,
)
from router.limits import GATEWAYS_IN_A_ROW, RelayLimits
from router.metrics import Metrics
from router.request import Request
from router.stored_responses import StoredResponses
from router.tokens.base import TokenSource
from router.upstream import Upstream, WorkerPool
from router.wire.endpoints import EndpointKind, lookup, response_id
from router.wire.endpoints import Protocol as WireProtocol
from router.wire.multipart import model_of_form
from router.wire.openai import ParsedBody, parse_body
from router.wire.sessions import session_of
from router.wire.websocket import SWITCH_LINES
from router.worker_connection import WorkerConnection

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

    def _parse(self, call: Call) -> ParsedBody | None:
        """None when nothing in the body can change the decision: then it is not even read. Nor is what is
        compressed."""
        endpoint, body = call.endpoint, call.request.body
        if endpoint.kind is not EndpointKind.INFERENCE or call.head.is_encoded:
            return None
        needs = self.core.needs
        by_prompt = endpoint.routed_by_prompt and (needs.overlap or needs.session)
        by_store = endpoint.protocol is WireProtocol.RESPONSES and b'"previous_response_id"' in body
        if not by_prompt and not by_store and len(self.core.models()) <= 1:
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
        failure: WorkerError | None = None
        while True:
            try:
                worker = self._decide(call, tried)
            except NoWorkers:
                if failure is not None:
                    raise failure from None
                raise
            try:
                await self._attempt(call, worker)
                return
            except WorkerError as error:
                failure = error
                if not self._may_retry(call, error):
                    raise
            self.core.finish(call.id, Outcome.WORKER_FAILED, now=self.clock())
            self.metrics.retry(worker.id, failure.code)
            tried |= self._ranks_beside(worker)
            call.attempt += 1

    def _decide(self, call: Call, tried: set[WorkerId]) -> Worker:
        now = self.clock()
        decision = self.core.route(
            call.routing_request(), call.prompt, now=now, exclude=tried, attempt=call.attempt
        )
        call.decided(decision)
        self.metrics.stage("route", self.clock() - now)
        self.metrics.request_started(decision.worker.id, call.model)
        self.metrics.overlap_lost(decision.worker.id, int(decision.details["overlap_lost_tokens"]))
        return decision.worker

    def _may_retry(self, call: Call, error: WorkerError) -> bool:
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

    # One attempt

    async def _attempt(self, call: Call, worker: Worker) -> None:
        """On a connection that is open already if there is one. If the worker has just closed that one (both
        sides time idle connections), the request goes over a new one, which is no retry."""
        pool = self.upstream.pool(worker)
        connection = pool.take_idle()
        if connection is not None:
            try:
                await self._exchange(call, pool, connection)
                return
            except WorkerUnavailable:
                if not connection.is_silent:
                    raise
        await self._exchange(call, pool, await self._connect(worker, pool))

    async def _connect(self, worker: Worker, pool: WorkerPool) -> WorkerConnection:
        try:
            return await pool.connect()
        except WorkerError:
            self.core.observe_health(worker.id, HealthSign.CONNECT_FAILED, now=self.clock())
            self._fleet.suspect(worker.id)
            raise

    async def _exchange(self, call: Call, pool: WorkerPool, connection: WorkerConnection) -> None:
        relay = call.new_relay()
        try:
            relay.start(connection, self._worker_head(call, pool), call.request.body)
            await relay.ended()
        finally:
            relay.abort()
        call.succeeded(relay, self.clock())

    def _worker_head(self, call: Call, pool: WorkerPool) -> bytes:
        """The client's head, but for what concerns one connection, keys and the length."""
        head, request = call.head, call.request
        lines = [head.method, b" ", head.target, b" HTTP/1.1\r\n", pool.lines, head.forward]
        lines.append(self._client_keys.forwarded(head, has_worker_key=pool.has_key))
        if not pool.names_rank:
            lines.append(head.rank_lines)
        via = b"%b, %b" % (head.via, self._via) if head.via else self._via
        lines += (b"x-request-id: ", call.request_id, b"\r\nx-kvgate-via: ", via, b"\r\n")
        if head.is_chunked or head.content_length is not None:
            lines.append(b"content-length: %d\r\n" % len(request.body))
        if head.is_websocket:
            lines.append(SWITCH_LINES)
        lines.append(b"\r\n")
        return b"".join(lines)

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
