"""What can go wrong with a request, and what its client is told.

Each error belongs to someone (ClientError, WorkerError, the fleet's and the gateway's own), carries its HTTP
status, says whether another worker may do better (`retryable`), and is shaped as OpenAI's API does it, so
that every client library can show it. What the gateway does about an error lives elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson


class RouterError(Exception):
    """Answered as JSON `{"error": {"message", "type", "param", "code"}}` with `status`.

    `param` names the field or header at fault, `code` is a stable word for programs, `headers` go out too.
    """

    status: int = 500
    type: str = "server_error"
    code: str = "internal_error"
    retryable: bool = False

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.headers = tuple(headers)
        if code is not None:
            self.code = code

    def fields(self) -> dict[str, str | None]:
        """What OpenAI's error object holds."""
        # Messages may quote what a client sent, lone surrogates included, which JSON text cannot hold.
        message = self.message.encode("utf-8", "replace").decode("utf-8")
        return {"message": message, "type": self.type, "param": self.param, "code": self.code}

    def body(self) -> bytes:
        """The JSON body that the client gets."""
        return orjson.dumps({"error": self.fields()})


class InternalError(RouterError):
    """A defect of the gateway itself."""


# The client's


class ClientError(RouterError):
    """The request cannot be served as it is, by any worker."""

    status = 400
    type = "invalid_request_error"
    code = "bad_request"


class BadRequest(ClientError):
    """Malformed HTTP, or a body that routing needs and cannot read."""


class ModelRequired(BadRequest):
    """Several models are served and the request names none."""

    code = "model_required"

    def __init__(self, served: Sequence[str]) -> None:
        super().__init__(f"'model' is required; this gateway serves: {_listed(served)}", param="model")


class Unauthorized(ClientError):
    """No key, or a wrong one."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"

    def __init__(self, message: str = "A valid API key is required") -> None:
        super().__init__(message, headers=(("www-authenticate", "Bearer"),))


class UnknownPath(ClientError):
    """A path that is not forwarded."""

    status = 404
    code = "unknown_path"


class UnknownModel(ClientError):
    """No worker serves the model."""

    status = 404
    code = "model_not_found"

    def __init__(self, model: str, served: Sequence[str]) -> None:
        message = f"The model '{model}' does not exist; this gateway serves: {_listed(served)}"
        super().__init__(message, param="model")


class MethodNotAllowed(ClientError):
    """The path exists, the method does not."""

    status = 405
    code = "method_not_allowed"

    def __init__(self, method: str, allowed: Sequence[str]) -> None:
        names = ", ".join(allowed)
        super().__init__(
            f"Method {method} is not allowed here; allowed: {names}", headers=(("allow", names),)
        )


class RequestTimeout(ClientError):
    """The client took too long to send its request."""

    status = 408
    code = "request_timeout"


class BodyTooLarge(ClientError):
    """The body is over the limit."""

    status = 413
    code = "body_too_large"


class UriTooLong(ClientError):
    """The request target is over the limit."""

    status = 414
    code = "uri_too_long"


class HeadersTooLarge(ClientError):
    """The header block is over the limit."""

    status = 431
    code = "headers_too_large"


class NotSupported(ClientError):
    """HTTP that this gateway does not speak (other tunnels, unknown transfer codings)."""

    status = 501
    code = "not_supported"


class LoopDetected(ClientError):
    """The request has passed this gateway before, or too many others."""

    status = 508
    code = "loop_detected"


# The fleet's


class NoWorkers(RouterError):
    """No usable worker serves the request now."""

    status = 503
    type = "service_unavailable"
    code = "no_workers"


class Overloaded(RouterError):
    """The gateway is at one of its own limits; the client may come back after `retry_after` seconds."""

    status = 503
    type = "service_unavailable"
    code = "overloaded"

    def __init__(self, message: str, *, retry_after: int = 1) -> None:
        super().__init__(message, headers=(("retry-after", str(retry_after)),))


class ShuttingDown(RouterError):
    """The gateway ends before the answer did."""

    status = 503
    type = "service_unavailable"
    code = "shutting_down"

    def __init__(self) -> None:
        super().__init__("The gateway is shutting down", headers=(("retry-after", "1"),))


# A worker's


class Refused(RouterError):
    """A worker's engine did not carry out an order from the admin port."""

    status = 409
    type = "conflict"
    code = "refused"


class WorkerError(RouterError):
    """One worker failed; before any body byte was relayed another one is tried."""

    status = 502
    type = "upstream_error"
    retryable = True


class WorkerUnavailable(WorkerError):
    """No connection, or it was lost."""

    code = "worker_unavailable"


class HandOverRefused(WorkerError):
    """A decode worker did not take what a prefill worker has computed; without it, it may answer."""

    code = "hand_over_refused"


class PrefillFailed(WorkerError):
    """The other leg of a request failed: the worker that was to compute its prompt."""

    code = "prefill_failed"


class PrefillRefused(RouterError):
    """A prefill worker has found the request wrong: its answer is the client's, as it came."""

    code = "prefill_refused"

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"The prefill worker answered {status}")
        self.status = status
        self._body = body

    def body(self) -> bytes:
        return self._body


class WorkerProtocolError(WorkerError):
    """It answered what is not HTTP, or broke the framing that it announced."""

    code = "worker_protocol_error"


class WorkerTimeout(WorkerError):
    """It did not answer, or went silent, for longer than the limit."""

    status = 504
    code = "worker_timeout"
    retryable = False


class WorkerConnectTimeout(WorkerTimeout):
    """It did not take the connection in time: nothing was sent, so another one may be asked."""

    code = "connect_timeout"
    retryable = True


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "nothing yet"
