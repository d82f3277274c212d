"""`sticky_until_saturated`: the worker that holds the prompt, until too much prefill waits there.

The rule and the defaults are llm-d's: a holder is saturated when its outstanding prefill tokens exceed what
an engine at its peak computes in the longest wait; whatever comes then goes where the least waits.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from policies.base import BasePolicy, Needs
from policies.costs import break_tie
from policies.parameters import Parameter, table_of
from policies.types import Candidates, Choice, RoutingRequest


class StickyUntilSaturated(BasePolicy):
    """A holder has at least `affinity_threshold` of the prompt; of several the deepest, then the one with the
    least prefill waiting."""

    name = "sticky_until_saturated"
    needs = Needs(overlap=True, loads=True)
    PARAMETERS = table_of(
        Parameter(
            "affinity_threshold", 0.8, 0.0, 1.0,
            "The part of a prompt that a worker must hold to be stayed with.",
        ),
        Parameter(
            "peak_prefill_throughput", 20_480.0, 1.0, None,
            "Prompt tokens that a worker computes in a second at its best.",
        ),
        Parameter(
            "max_wait_seconds", 14.0, 0.0, None,
            "How long prefill may wait at a holder, at that throughput, before prompts go elsewhere.",
        ),
    )  # fmt: skip

    def __init__(self, parameters: Mapping[str, object] | None = None) -> None:
        super().__init__(parameters)
        self._affinity = self.number("affinity_threshold")
        self._saturation_tokens = self.number("peak_prefill_throughput") * self.number("max_wait_seconds")

    def choose(self, request: RoutingRequest, candidates: Candidates, rng: random.Random) -> Choice:
        held, waiting = candidates.held_blocks_of_prompt, candidates.active_prefill_blocks
        enough = max(self._affinity * candidates.prompt_blocks, 1e-9)  # holding nothing is no affinity
        holders = [row for row, blocks in enumerate(held) if blocks >= enough]
        open_holders = [
            row for row in holders if waiting[row] * candidates.block_tokens <= self._saturation_tokens
        ]
        deepest = max((held[row] for row in open_holders), default=0)
        rows = [row for row in open_holders if held[row] == deepest] or range(len(candidates))
        least = min(waiting[row] for row in rows)
        row, _ = break_tie(candidates, [row for row in rows if waiting[row] == least], rng)
        if open_holders:
            return Choice(row, reason="holds the prompt and is not saturated")
        return Choice(row, reason=f"least prefill: {'every holder is saturated' if holders else 'no holder'}")
