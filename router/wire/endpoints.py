"""The paths that the public port knows, as one literal table.

Only inference passes: whatever administers a worker (sleeping, loading adapters, updating weights, clearing
caches) is absent, and a path that is absent is answered 404. What is done for each kind of endpoint is the
proxy's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class EndpointKind(StrEnum):
    """How a request to an endpoint is handled."""

    INFERENCE = "inference"
    """A JSON body whose `model` says which workers may serve it."""
    MULTIPART = "multipart"
    """A form whose field `model` says so; read with `wire.multipart`."""
    STORED_RESPONSE = "stored_response"
    """Belongs to the worker that stored the response named in the path."""
    TUNNEL = "tunnel"
    """A WebSocket to a worker that serves the model named in the query."""
    INFO = "info"
    """Any worker can answer; no body."""
    MODELS = "models"
    """Answered by the gateway: the union of what the fleet serves."""
    MODEL = "model"
    """Answered by the gateway: one entry of that union, named in the path."""
    LIVE = "live"
    """Answered by the gateway, never dependent on workers."""
    READY = "ready"
    """Answered by the gateway: 200 while at least one worker is usable."""


class Protocol(StrEnum):
    """The shape of a body's prompt and of an answer's usage."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    GENERATE = "generate"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One row. `path` is the canonical one; `{id}` in it stands for one variable part."""

    path: str
    kind: EndpointKind
    methods: tuple[str, ...] = ("POST",)
    protocol: Protocol = Protocol.OTHER

    @property
    def routed_by_prompt(self) -> bool:
        """Whether the prompt, where it can be read, takes part in the choice of the worker."""
        return self.protocol is not Protocol.OTHER

    @property
    def event_protocol(self) -> Protocol:
        """Whose events its streams are made of: a stored response may be streamed again."""
        return Protocol.RESPONSES if self.kind is EndpointKind.STORED_RESPONSE else self.protocol


_GET = ("GET", "HEAD")
_INFERENCE = EndpointKind.INFERENCE

_ROWS: tuple[Endpoint, ...] = (
    Endpoint("/v1/chat/completions", _INFERENCE, protocol=Protocol.CHAT),
    Endpoint("/v1/completions", _INFERENCE, protocol=Protocol.COMPLETIONS),
    Endpoint("/v1/responses", _INFERENCE, protocol=Protocol.RESPONSES),
    Endpoint("/v1/messages", _INFERENCE, protocol=Protocol.MESSAGES),
    Endpoint("/generate", _INFERENCE, protocol=Protocol.GENERATE),
    Endpoint("/v1/chat/completions/batch", _INFERENCE),
    Endpoint("/v1/chat/completions/render", _INFERENCE),
    Endpoint("/v1/completions/render", _INFERENCE),
    Endpoint("/v1/messages/count_tokens", _INFERENCE),
    Endpoint("/inference/v1/generate", _INFERENCE),
    Endpoint("/generative_scoring", _INFERENCE),
    Endpoint("/invocations", _INFERENCE),
    Endpoint("/v1/embeddings", _INFERENCE),
    Endpoint("/encode", _INFERENCE),
    Endpoint("/pooling", _INFERENCE),
    Endpoint("/classify", _INFERENCE),
    Endpoint("/score", _INFERENCE),
    Endpoint("/rerank", _INFERENCE),
    Endpoint("/v2/rerank", _INFERENCE),
    Endpoint("/tokenize", _INFERENCE),
    Endpoint("/detokenize", _INFERENCE),
    Endpoint("/v1/moderations", _INFERENCE),
    Endpoint("/v1/audio/speech", _INFERENCE),
    Endpoint("/v1/images/generations", _INFERENCE),
    Endpoint("/v1/audio/transcriptions", EndpointKind.MULTIPART),
    Endpoint("/v1/audio/translations", EndpointKind.MULTIPART),
    Endpoint("/v1/images/edits", EndpointKind.MULTIPART),
    Endpoint("/v1/images/variations", EndpointKind.MULTIPART),
    Endpoint("/v1/responses/{id}", EndpointKind.STORED_RESPONSE, ("GET", "HEAD", "DELETE")),
    Endpoint("/v1/responses/{id}/cancel", EndpointKind.STORED_RESPONSE),
    Endpoint("/v1/responses/{id}/input_items", EndpointKind.STORED_RESPONSE, _GET),
    Endpoint("/v1/realtime", EndpointKind.TUNNEL, ("GET",)),  # vLLM, vLLM-Omni
    Endpoint("/v1/duplex", EndpointKind.TUNNEL, ("GET",)),  # vLLM-Omni
    Endpoint("/v1/models", EndpointKind.MODELS, _GET),
    Endpoint("/v1/models/{id}", EndpointKind.MODEL, _GET),
    Endpoint("/version", EndpointKind.INFO, _GET),
    Endpoint("/model_info", EndpointKind.INFO, _GET),
    Endpoint("/get_model_info", EndpointKind.INFO, _GET),
    Endpoint("/health", EndpointKind.LIVE, _GET),
    Endpoint("/healthz", EndpointKind.LIVE, _GET),
    Endpoint("/livez", EndpointKind.LIVE, _GET),
    Endpoint("/liveness", EndpointKind.LIVE, _GET),
    Endpoint("/readyz", EndpointKind.READY, _GET),
    Endpoint("/readiness", EndpointKind.READY, _GET),
)

_SPELLED_BOTH_WAYS = {EndpointKind.INFERENCE, EndpointKind.MULTIPART, EndpointKind.MODELS}
"""Engines and clients disagree on the `/v1` before these: both spellings are known, of other versions one."""


def _spellings(row: Endpoint) -> Iterable[str]:
    yield row.path
    if row.kind in _SPELLED_BOTH_WAYS:
        if row.path.startswith("/v1/"):
            yield row.path.removeprefix("/v1")
        elif "/v" not in row.path:
            yield "/v1" + row.path


ENDPOINTS: Mapping[str, Endpoint] = {
    spelling: row for row in _ROWS if "{id}" not in row.path for spelling in _spellings(row)
}
"""Path -> row, for every path without a variable part."""

_VARIABLE = tuple((row.path.partition("{id}"), row) for row in _ROWS if "{id}" in row.path)


def lookup(path: str) -> Endpoint | None:
    """The row for a path without its query, or None: then it is not served here."""
    return ENDPOINTS.get(path) or _lookup_variable(path)


def response_id(path: str) -> str:
    """The stored response that `/v1/responses/{id}...` names."""
    return path.removeprefix("/v1/responses/").partition("/")[0]


def _lookup_variable(path: str) -> Endpoint | None:
    for (prefix, _, suffix), row in _VARIABLE:
        name = path[len(prefix) : len(path) - len(suffix)]
        if not name or not path.startswith(prefix) or not path.endswith(suffix):
            continue
        # Names of models hold slashes, those of responses do not.
        if row.kind is EndpointKind.MODEL or "/" not in name:
            return row
    return None
