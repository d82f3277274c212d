"""The token source that takes the trouble of tokens only where exact overlap is to be had."""

from __future__ import annotations

from collections.abc import Sequence

from router.core.catalogue import Resolution
from router.core.prompt import Prompt
from router.tokens.agreement import Agreement
from router.tokens.base import TokenHost, TokenSource
from router.tokens.local.source import NO_TEXT, LocalTokens
from router.tokens.refusals import NoTokens
from router.wire.endpoints import Endpoint, Protocol
from router.wire.openai import ParsedBody


class AutoTokens:
    """The token source `auto`: where the policy uses exact overlap and a worker offers it, `local` if the
    workers agree with it, else `engine`; elsewhere, and where neither can serve, `cheap`."""

    def __init__(
        self,
        host: TokenHost,
        *,
        local: LocalTokens,
        agreement: Agreement,
        engine: TokenSource,
        cheap: TokenSource,
    ) -> None:
        self._host = host
        self._local = local
        self._agreement = agreement
        self._engine = engine
        self._cheap = cheap

    async def prompt(self, parsed: ParsedBody, endpoint: Endpoint, resolution: Resolution) -> Prompt | None:
        if not self._host.wants_exact_overlap(resolution.model):
            return await self._cheap.prompt(parsed, endpoint, resolution)
        targets = self._host.tokenize_targets(resolution.model)
        if self._agreement.holds(resolution, targets):
            try:
                return await self._local.exact_prompt(parsed, endpoint, resolution)
            except NoTokens as error:
                if not targets and error.reason != NO_TEXT:
                    self._host.fell_back(error.reason)
        source = self._engine if targets else self._cheap
        return await source.prompt(parsed, endpoint, resolution)

    def tokens_of_probe(self, model: str, protocol: Protocol = Protocol.CHAT) -> Sequence[int] | None:
        """See `router.tokens.probe.ProbeTokens`. None while prompts have the workers' own tokens."""
        if not self._agreement.is_relied_on(model):
            return None
        return self._local.tokens_of_probe(model, protocol)
