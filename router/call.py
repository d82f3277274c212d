"""One request while the gateway works on it: what is known of it, what is told about it, and its single end.

The order of the work stands in `proxy`; bytes are moved by `relay`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from policies.types import Decision, RoutingRequest, WorkerId
from router.client_connection import ClientConnection
from router.core.outcome import Outcome
from router.core.prompt import Prompt
from router.errors import RouterError, ShuttingDown, WorkerError, WorkerTimeout
from router.relay import Relay
from router.request import Request
from router.stored_responses import StoredAt
from router.tunnel import Handshake
from router.wire.endpoints import Endpoint, Protocol
from router.wire.http1 import RequestHead
from router.wire.usage import usage_of

if TYPE_CHECKING:
    from router.proxy import Proxy

_DELTA_PROTOCOLS = (Protocol.RESPONSES, Protocol.MESSAGES)
"""Their streams begin with events that come before any token."""

_RANKED_PROTOCOLS = (Protocol.CHAT, Protocol.COMPLETIONS)
"""In which engines read the header that names a data-parallel rank; for others they choose one themselves."""


class Call:
    """An Observer of its relays. `id` is ours and unique; the client's `x-request-id` may repeat."""

    __slots__ = (
        "_num_legs", "_proxy", "_started_at", "attempt", "client", "endpoint", "head", "id", "members",
        "model", "outcome", "pinned_to", "policy", "prefill_worker_id", "prompt", "relay", "request",
        "request_id", "session", "status", "stays_whole", "stream", "transfer_began_at", "worker_id",
    )  # fmt: skip

    def __init__(self, proxy: Proxy, call_id: str, request: Request, client: ClientConnection) -> None:
        assert request.head is not None
        assert request.endpoint is not None
        self._proxy = proxy
        self._started_at = request.received_at
        self.id = call_id
        self.request = request
        self.client = client
        self.head: RequestHead = request.head
        self.endpoint: Endpoint = request.endpoint
        self.request_id = self.head.request_id or call_id.encode()
        self.model = ""
        self.session: str | None = None
        self.stream = False
        self.members: Mapping[str, msgspec.Raw] | None = None
        """Of its body, where two workers may share the request."""
        self.stays_whole = ""
        """Why they may not."""
        self._num_legs = 0
        self.prefill_worker_id: WorkerId = ""
        """Who computes its prompt, where that is another one."""
        self.transfer_began_at = 0.0
        """When the decode worker was sent what the prefill worker has computed; 0: not."""
        self.prompt: Prompt | None = None
        self.pinned_to: WorkerId | None = None
        """The only worker that can answer."""
        self.attempt = 0
        self.worker_id: WorkerId = ""
        """The worker decided on last; "" before any."""
        self.policy = ""
        self.relay: Relay | None = None
        self.status = 0
        self.outcome = Outcome.CLIENT_GONE  # unless another end is reached first

    def decided(self, decision: Decision) -> None:
        """Another attempt begins."""
        self.worker_id, self.policy = decision.worker.id, decision.policy
        self.prefill_worker_id, self.transfer_began_at = "", 0.0

    def leg_id(self) -> bytes:
        """What engines call two legs that belong together; others never have the same, whatever clients
        send. Another one each time."""
        self._num_legs += 1
        own = f"{self.id}-{self._num_legs}".encode()
        return b"%b-%b" % (self.head.request_id, own) if self.head.request_id else own

    @property
    def is_answered(self) -> bool:
        """Whether an attempt has reached the end of its answer."""
        return self.outcome is Outcome.DONE

    def routing_request(self) -> RoutingRequest:
        return RoutingRequest(
            id=self.id,
            model=self.model,
            num_prompt_tokens=self.prompt.num_tokens if self.prompt is not None else 0,
            session=self.session,
            stream=self.stream,
            client_request_id=self.request_id.decode("latin-1"),
            names_rank=self.endpoint.protocol in _RANKED_PROTOCOLS,
            stays_whole=self.stays_whole,
        )

    def new_relay(self, *, refuses_errors: bool = False) -> Relay:
        """For another exchange with the worker that was decided on."""
        proxy, protocol = self._proxy, self.endpoint.protocol
        extra_lines = b"x-request-id: %b\r\nx-kvgate-worker: %b\r\n" % (
            self.request_id,
            self.worker_id.encode(),
        )
        if self.prefill_worker_id:
            extra_lines += b"x-kvgate-prefill-worker: %b\r\n" % self.prefill_worker_id.encode()
        relay = Handshake if self.head.is_websocket else Relay
        self.relay = relay(
            self.client,
            self.head,
            self,
            extra_lines=extra_lines,
            delta_events=protocol in _DELTA_PROTOCOLS,
            wants_body=self.prompt is not None,
            refuses_errors=refuses_errors,
            early_headers=proxy.settings.early_headers,
            limits=proxy.limits,
            deadline=self._started_at + proxy.limits.request_seconds,
            clock=proxy.clock,
        )
        return self.relay

    # What the relay sees

    def began(self, beginning: bytes, now: float) -> None:
        self.client.release(self.request)
        self.members = None  # they hold the body
        if self.endpoint.protocol is Protocol.RESPONSES:
            self._proxy.stored_responses.note(beginning, StoredAt(self.worker_id, self.model))

    def first_token(self, now: float) -> None:
        if self._is_refused():
            return
        self._proxy.core.first_token(self.id, now=now)
        if self.transfer_began_at:
            self._proxy.metrics.kv_transfer(self.worker_id, now - self.transfer_began_at)
        if self.endpoint.protocol is not Protocol.OTHER:
            self._proxy.metrics.ttft(self.worker_id, self.policy, now - self._started_at)

    def token_gaps(self) -> Callable[[float], None]:
        return self._proxy.metrics.itl(self.worker_id, self.policy)

    def output_tokens(self, num: int, now: float) -> None:
        if not self._is_refused():
            self._proxy.core.output_tokens(self.id, num, now=now)

    def _is_refused(self) -> bool:
        """Whether the worker answers with an error: no sign that it has computed the prompt."""
        return self._relayed_status() >= 400

    def _relayed_status(self) -> int:
        """0 before the head of the worker's answer."""
        response = self.relay.response if self.relay is not None else None
        return response.status if response is not None else 0

    # Ends

    def succeeded(self, relay: Relay, now: float) -> None:
        """The answer reached its end: what it says about tokens goes to the core."""
        self.outcome = Outcome.DONE
        self.status = self._relayed_status()
        relay.tell_progress(now)
        usage = usage_of(relay.usage_json) if self.prompt is not None else None
        if usage is None:
            return
        cached = self._proxy.core.observe_usage(
            self.id, prompt_tokens=usage.prompt_tokens, cached_tokens=usage.cached_tokens, now=now
        )
        if cached is not None:
            self._proxy.metrics.cached(self.worker_id, cached.expected, cached.reported)

    def failed(self, error: RouterError) -> None:
        """Tell the client, in the place where it can still be told."""
        self.outcome = _outcome_of(error)
        relay = self.relay
        if relay is None or not relay.committed:
            self.status = error.status
            self.client.respond_error(error, headers=self._own_headers())
            return
        self.status = self._relayed_status()
        placed = relay.cut_short(error, self.endpoint.event_protocol)
        self._proxy.metrics.error(error.code)
        self._proxy.metrics.stream_error_event(self.worker_id, placed)

    def ended(self, now: float) -> None:
        """The one end, whichever way it was reached: nothing stays booked, everything is counted once."""
        if self.outcome is Outcome.CLIENT_GONE:
            self._observe_leaving()
        proxy = self._proxy
        proxy.core.finish(self.id, self.outcome, now=now)
        duration = now - self._started_at
        proxy.metrics.request_ended(
            self.worker_id, self.policy, self.model, self.endpoint.path, self.status, self.outcome, duration
        )
        if proxy.access_log is not None:
            proxy.access_log(self._log_fields(duration))
        self.relay = (
            None  # each knew the other: what is no cycle is freed at once, and warm memory used again
        )

    def _observe_leaving(self) -> None:
        if self.client.cut_reason == "drain":
            self.outcome = Outcome.DRAINED
        else:
            self._proxy.metrics.client_gone(self._phase())

    def _phase(self) -> str:
        if self.client.cut_reason:
            return self.client.cut_reason
        if self.relay is None:
            return "prefill" if self.prefill_worker_id else "routing"
        return "answer" if self.relay.begun else "waiting"

    def _own_headers(self) -> tuple[tuple[str, str], ...]:
        return (("x-request-id", self.request_id.decode("latin-1")),)

    def _log_fields(self, duration: float) -> dict[str, object]:
        return {
            **request_fields(self.request_id, self.head),
            "model": self.model,
            "worker": self.worker_id,
            "prefill_worker": self.prefill_worker_id,
            "status": self.status,
            "outcome": self.outcome.value,
            "attempts": self.attempt + 1 if self.worker_id else 0,
            "seconds": round(duration, 4),
        }


def refusal_fields(request: Request, error: RouterError, now: float) -> dict[str, object]:
    """The access log's fields for a request that never became a call, in the order of all others'."""
    head = request.seen_head
    return {
        **request_fields(head.request_id if head is not None else b"", head),
        "model": "",
        "worker": "",
        "prefill_worker": "",
        "status": error.status,
        "outcome": Outcome.REJECTED.value,
        "attempts": 0,
        "seconds": round(now - request.received_at, 4),
    }


def request_fields(request_id: bytes, head: RequestHead | None) -> dict[str, object]:
    """What of a head is logged; empty where it could not be read."""
    return {
        "request_id": request_id.decode("latin-1"),
        "method": head.method.decode() if head is not None else "",
        "path": head.path if head is not None else "",
    }


def _outcome_of(error: RouterError) -> Outcome:
    if isinstance(error, WorkerTimeout):
        return Outcome.TIMED_OUT
    if isinstance(error, ShuttingDown):
        return Outcome.DRAINED
    return Outcome.WORKER_FAILED if isinstance(error, WorkerError) else Outcome.REJECTED
