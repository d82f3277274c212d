"""How long an engine's work takes, in milliseconds: formulas for the policy that predicts and for the core
that learns. Where their coefficients come from is not said here.
"""

from __future__ import annotations

import math
from typing import NamedTuple


class PrefillTime(NamedTuple):
    """Milliseconds for a prompt, for each new token, and for each pair of tokens that attention compares."""

    base: float
    token: float
    pair: float

    def of(self, num_tokens: float, cached: float) -> float:
        """For a prompt of which `cached` tokens are held: each new token also meets all that came before."""
        return self.base + (num_tokens - cached) * (self.token + self.pair * (num_tokens + cached))


class StepTime(NamedTuple):
    """Milliseconds for a decode step, for each stream in it, and for each resident token."""

    base: float
    stream: float
    token: float

    def of(self, num_streams: float, num_tokens: float) -> float:
        return self.base + self.stream * num_streams + self.token * num_tokens


def num_chunks(new_tokens: float, batched_tokens: int) -> int:
    """Steps into which an engine cuts the prefill of so many tokens."""
    return math.ceil(new_tokens / batched_tokens)
