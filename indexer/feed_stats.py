"""What is counted of one worker's events."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class FeedStats:
    """Plain counters of one publisher since it was added. `ignored` counts by reason."""

    num_messages: int = 0
    num_events: int = 0
    num_blocks_stored: int = 0
    num_blocks_removed: int = 0
    num_clears: int = 0
    num_gaps: int = 0
    num_replays: int = 0
    num_restarts: int = 0
    num_orphans: int = 0
    """Stored events whose parent was not known when they came."""
    num_orphans_adopted: int = 0
    """Of these, how many could be claimed later."""
    num_orphans_dropped: int = 0
    """And how many waited in vain."""
    num_overreports: int = 0
    num_learnt: int = 0
    num_blocks_dropped: int = 0
    """Given up to stay within the memory of the index, while the engine may hold them still."""
    ignored: Counter[str] = field(default_factory=Counter)
    num_blocks: int = 0
    """Held on the device now."""
    num_learnt_blocks: int = 0
    """Of them none: believed held now since the engine reported them as cached."""
    last_sequence: int | None = None
