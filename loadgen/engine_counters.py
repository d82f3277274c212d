"""What a modelled engine has done since it started."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class EngineCounters:
    """Totals since the engine started; the two cache counters are in tokens."""

    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    prompt_tokens: int = 0
    computed_prompt_tokens: int = 0
    """Prompt tokens that prefill had to compute, those of preempted sequences again."""
    generation_tokens: int = 0
    preemptions: int = 0
    finished: int = 0
    aborted: int = 0
    transferred_prompt_tokens: int = 0
    """Prompt tokens that were not computed nor cached here: their KV came from another engine."""
    steps: int = 0
    busy_seconds: float = 0.0
    """Sum of the steps' times."""
