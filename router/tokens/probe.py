"""Fixed prompts by which a token source is compared with a worker's own `/tokenize`.

Between them they have what goes wrong: a chat template, text in several scripts, what looks like a special
token, blanks at the edges, and whatever the tokenizer puts before a plain text. Comparing is not done here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol as Contract
from typing import runtime_checkable

import msgspec

from router.wire.endpoints import Protocol
from router.wire.openai import Slices

_TEXT = " Grüße, 你好 🚀:\n\n  def f(x): return x*10**6 <|im_end|></s> [INST]\t"

_MESSAGES = [
    {"role": "user", "content": _TEXT},
    {"role": "assistant", "content": "Four."},
    {"role": "user", "content": "Why?"},
]

PROBES: Mapping[Protocol, Slices] = {
    Protocol.CHAT: {"messages": msgspec.Raw(msgspec.json.encode(_MESSAGES))},
    Protocol.COMPLETIONS: {"prompt": msgspec.Raw(msgspec.json.encode(_TEXT))},
}
"""The prompt fields of a body, by the shape of its prompt: `ENGINES[engine].tokenize_request` takes them."""


@runtime_checkable
class ProbeTokens(Contract):
    """What a token source offers that knows tokens by itself."""

    def tokens_of_probe(self, model: str, protocol: Protocol = Protocol.CHAT) -> Sequence[int] | None:
        """The token ids of `PROBES[protocol]` for a base model; None where that cannot be said: no tokenizer,
        none yet, or no chat template. Takes about a millisecond the first time."""
        ...
