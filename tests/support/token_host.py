"""A fleet as token sources see it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from indexer.blocks import HashSpace
from router.core.catalogue import Resolution
from router.tokens.base import ModelHints, TokenizeTarget
from router.wire.endpoints import lookup
from router.wire.openai import parse_body

MODEL = Resolution("m", "m")
SPACE = HashSpace("m", 4)

CHAT = lookup("/v1/chat/completions")
COMPLETIONS = lookup("/v1/completions")


@dataclass
class StubHost:
    spaces: Sequence[HashSpace] = (SPACE,)
    targets: Sequence[TokenizeTarget] = ()
    exact: bool = True
    fallbacks: Counter[str] = field(default_factory=Counter)
    hints: Mapping[str, ModelHints] = field(default_factory=dict)
    listeners: list[Callable[[], None]] = field(default_factory=list)

    def models(self) -> Mapping[str, ModelHints]:
        return self.hints

    def on_change(self, listener: Callable[[], None]) -> None:
        self.listeners.append(listener)

    def hash_spaces(self, model: str) -> Sequence[HashSpace]:
        return self.spaces

    def tokenize_targets(self, model: str) -> Sequence[TokenizeTarget]:
        return self.targets

    def wants_exact_overlap(self, model: str) -> bool:
        return self.exact

    def fell_back(self, reason: str) -> None:
        self.fallbacks[reason] += 1


async def prompt_of(source, body: bytes, endpoint=COMPLETIONS, resolution=MODEL):
    """What a source makes of a body."""
    return await source.prompt(parse_body(body, endpoint), endpoint, resolution)
