"""The token source that asks engines only where exact overlap is to be had."""

from __future__ import annotations

from router.core.catalogue import Resolution
from router.core.prompt import Prompt
from router.tokens.base import TokenHost, TokenSource
from router.wire.endpoints import Endpoint
from router.wire.openai import ParsedBody


class AutoTokens:
    """The token source `auto`: `exact` when the policy uses it and a worker offers it, else `cheap`."""

    def __init__(self, host: TokenHost, exact: TokenSource, cheap: TokenSource) -> None:
        self._host = host
        self._exact = exact
        self._cheap = cheap

    async def prompt(self, parsed: ParsedBody, endpoint: Endpoint, resolution: Resolution) -> Prompt | None:
        model = resolution.model
        wants_exact = self._host.wants_exact_overlap(model) and self._host.tokenize_targets(model)
        source = self._exact if wants_exact else self._cheap
        return await source.prompt(parsed, endpoint, resolution)
