"""The contract of a token source, and what one may ask of the fleet.

A source makes a body's prompt ready for routing. `tests/contract/test_token_sources.py` runs over every row
of the `SOURCES` table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from indexer.blocks import HashSpace
from router.core.catalogue import Resolution
from router.core.prompt import Prompt
from router.wire.endpoints import Endpoint
from router.wire.openai import ParsedBody


@dataclass(frozen=True, slots=True)
class TokenizeTarget:
    """A healthy worker that can be asked for tokens."""

    worker_id: str
    url: str
    engine: str
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelHints:
    """What workers tell about a base model: where its files may lie, as they name the place, and an engine
    that serves it."""

    places: Sequence[str]
    engine: str


class TokenHost(Protocol):
    """The fleet, as far as a token source asks about it."""

    def models(self) -> Mapping[str, ModelHints]:
        """By base model, what its workers have told so far."""
        ...

    def on_change(self, listener: Callable[[], None]) -> None:
        """Have `listener` called whenever answers may differ from those before."""
        ...

    def hash_spaces(self, model: str) -> Sequence[HashSpace]: ...

    def tokenize_targets(self, model: str) -> Sequence[TokenizeTarget]:
        """Healthy workers of `model` that offer tokenization, those to be preferred first."""
        ...

    def wants_exact_overlap(self, model: str) -> bool:
        """Whether the policy reads overlap and some worker of `model` publishes its KV events."""
        ...

    def fell_back(self, reason: str) -> None:
        """A request's tokens were to come from an engine and do not; `reason` is one of a few words."""
        ...


class TokenSource(Protocol):
    """Makes prompts ready for routing."""

    async def prompt(self, parsed: ParsedBody, endpoint: Endpoint, resolution: Resolution) -> Prompt | None:
        """The prompt with its block hashes, or None when the request is to be routed without a prefix.

        Never raises for what the body holds. May wait, within `limits.TOKENIZE_SECONDS`.
        """
        ...
