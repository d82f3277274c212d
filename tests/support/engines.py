"""TokenEngines driven to the end in virtual time, and what a listener believes after their events."""

from __future__ import annotations

from collections import Counter

from indexer.events import AllBlocksCleared, BlockRemoved, BlockStored
from loadgen.engine import EngineSettings
from loadgen.token_engine import TokenEngine


def small_model(**changes) -> TokenEngine:
    """16 usable blocks of 4 tokens, steps of 32 tokens: small enough to count by hand."""
    settings = {"block_tokens": 4, "num_blocks": 17, "max_batched_tokens": 32, "max_model_len": 64}
    return TokenEngine(EngineSettings(**(settings | changes)))


def step(model, now=0.0):
    """One step; returns (when it ended, its output)."""
    ends_at = model.start_step(now)
    assert ends_at is not None, "nothing to run"
    return ends_at, model.finish_step()


def run_until_idle(model, now=0.0):
    """All steps that there are; returns (when the last one ended, all their events)."""
    events = []
    while (ends_at := model.start_step(now)) is not None:
        now = ends_at
        events += model.finish_step().events
    return now, events


def answer(model, prompt, max_tokens=1, **identity):
    """One request alone; returns its sequence and the events."""
    sequence = model.submit("r", prompt, max_tokens, **identity)
    _now, events = run_until_idle(model)
    assert sequence.finished
    return sequence, events


def copies_after(events, copies=None) -> Counter[int]:
    """Engine hash -> resident copies, for somebody who only listens."""
    copies = Counter() if copies is None else copies
    for event in events:
        match event:
            case BlockStored():
                copies.update(event.block_hashes)
            case BlockRemoved():
                copies.subtract(event.block_hashes)
            case AllBlocksCleared():
                copies.clear()
    return +copies
