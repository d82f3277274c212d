"""One URL of the fleet: its watch, its ranks, and what is going on about each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from policies.types import WorkerId
from router.fleet.index_warnings import IndexWarnings
from router.fleet.ranks import Rank
from router.fleet.watch import WorkerWatch


@dataclass(slots=True, eq=False)
class Member:
    """Whether or not it has answered yet. `ranks` are those that are served: none before it answers."""

    watch: WorkerWatch
    ranks: Sequence[Rank] = ()
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    looked: asyncio.Event = field(default_factory=asyncio.Event)
    """It was asked at least once."""
    described: str = ""
    """Its line as last logged."""
    mishap: str = ""
    """What the last look at it failed with, by a mistake of ours."""
    dismissed: set[WorkerId] = field(default_factory=set)
    """Ranks that were removed while others stay."""
    warnings: dict[WorkerId, IndexWarnings] = field(default_factory=dict)
    """By rank, what was said of its index."""
    sleep_gauge: bool | None = None
    """Whether it slept at the last look, by its metrics."""

    @property
    def id(self) -> WorkerId:
        """Of the URL: that of its worker, or what the ids of its ranks begin with."""
        return self.watch.spec.id

    @property
    def worker_ids(self) -> Sequence[WorkerId]:
        """Of its ranks; its own while it has not told whether there are several."""
        return [rank.worker.id for rank in self.ranks] or [self.id]
