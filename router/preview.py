"""What would be decided for a request body: the steps of a request, but nothing is sent or booked."""

from __future__ import annotations

from collections.abc import Callable

from policies.types import Decision, RoutingRequest
from router.core.routing import RoutingCore
from router.errors import BadRequest
from router.tokens import TokenSource
from router.wire.endpoints import ENDPOINTS, lookup
from router.wire.openai import parse_body
from router.wire.sessions import session_of

PREVIEW_ID = "preview"
"""Stands for a request id in a decision that was not carried out."""


class Previewer:
    """Calls take a body and a path of the public port; they raise RouterError as the request itself would."""

    def __init__(self, core: RoutingCore, tokens: TokenSource, clock: Callable[[], float]) -> None:
        self._core = core
        self._tokens = tokens
        self._clock = clock

    async def __call__(self, body: bytes, path: str) -> Decision:
        endpoint = lookup(path)
        if endpoint is None or not endpoint.routed_by_prompt:
            raise BadRequest(f"path must be one of {', '.join(_paths())}, not {path!r}", param="path")
        parsed = parse_body(body, endpoint)
        resolution = self._core.resolve(parsed.model)
        prompt = None
        if parsed.prompt and self._core.needs.overlap:
            prompt = await self._tokens.prompt(parsed, endpoint, resolution)
        request = RoutingRequest(
            id=PREVIEW_ID,
            model=resolution.model,
            num_prompt_tokens=prompt.num_tokens if prompt is not None else 0,
            session=session_of(b"", parsed),
            stream=parsed.stream,
        )
        return self._core.preview(request, prompt, now=self._clock())


def _paths() -> list[str]:
    return sorted(path for path, endpoint in ENDPOINTS.items() if endpoint.routed_by_prompt)
