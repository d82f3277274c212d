"""`cache_aware`: the best prefix match while loads are even, else the fewest requests.

The algorithm and the defaults are those of SGLang's gateway (its command line's, 0.3, 64 and 1.5; its library
has others). It matches text with a tree of its own; here the match is the overlap that all policies see.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from policies.base import BasePolicy, Needs
from policies.costs import break_tie
from policies.parameters import Parameter, table_of
from policies.types import Candidates, Choice, RoutingRequest


class CacheAware(BasePolicy):
    """Uneven: most - fewest > balance_abs_threshold and most > balance_rel_threshold * fewest requests."""

    name = "cache_aware"
    needs = Needs(overlap=True, loads=True)
    PARAMETERS = table_of(
        Parameter(
            "cache_threshold", 0.3, 0.0, 1.0,
            "The part of a prompt that the best match must be longer than, to be followed.",
        ),
        Parameter(
            "balance_abs_threshold", 64.0, 0.0, None,
            "Loads are even, and matches count, while the busiest worker has at most so many requests more"
            " than the idlest.",
        ),
        Parameter(
            "balance_rel_threshold", 1.5, 1.0, None,
            "They are even too while the busiest has no more than so many times the idlest's requests.",
        ),
    )  # fmt: skip

    def __init__(self, parameters: Mapping[str, object] | None = None) -> None:
        super().__init__(parameters)
        self._cache = self.number("cache_threshold")
        self._absolute = self.number("balance_abs_threshold")
        self._relative = self.number("balance_rel_threshold")

    def choose(self, request: RoutingRequest, candidates: Candidates, rng: random.Random) -> Choice:
        loads = candidates.num_active_requests
        most, fewest = max(loads), min(loads)
        if most - fewest > self._absolute and most > self._relative * fewest:
            return _least(candidates, loads, rng, f"loads are uneven ({most} against {fewest} requests)")
        held = candidates.held_blocks_of_prompt
        longest = max(held)
        if longest > self._cache * candidates.prompt_blocks:
            part = longest / candidates.prompt_blocks if candidates.prompt_blocks else 1.0
            matched = [loads[row] if blocks == longest else float("inf") for row, blocks in enumerate(held)]
            return _least(candidates, matched, rng, f"matches {part:.0%} of the prompt")
        return _least(candidates, loads, rng, "no match is long enough, fewest requests")


def _least(candidates: Candidates, loads: Sequence[float], rng: random.Random, reason: str) -> Choice:
    fewest = min(loads)
    row, _ = break_tie(candidates, [row for row, load in enumerate(loads) if load == fewest], rng)
    return Choice(row, reason=reason)
