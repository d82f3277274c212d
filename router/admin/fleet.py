"""What the admin port asks of the rest of the gateway beyond the decision core."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from indexer.blocks import BlockHash
from indexer.events import Tier
from policies.types import Decision, WorkerId
from router.engines.control import Order

Preview = Callable[[bytes, str], Awaitable[Decision]]
"""Body and path of a client's request -> what would be decided. Raises RouterError."""


class Fleet(Protocol):
    """The workers as the shell sees them."""

    async def add_worker(self, url: str, **options: str) -> WorkerId:
        """Its id. `options` are further fields of WorkerConfig. Raises WrongWorker: what can't be
        added."""
        ...

    async def remove_worker(self, worker_id: str) -> None:
        """With its index and bookings: one worker, or all ranks of a server by its id; no effect for what has
        left."""
        ...

    async def give_order(self, worker_id: WorkerId, order: Order, query: Mapping[str, str]) -> None:
        """Has the engine behind a worker's URL do it, for all of its ranks. Raises RouterError."""
        ...

    def views(self) -> Sequence[dict[str, Any]]:
        """A row for each worker: at least `id`, `url`, and `state`, "pending" until it has answered; `server`
        is the id that the ranks behind one URL have in common."""
        ...

    def dump(self) -> Iterator[list[tuple[Tier, BlockHash, list[str]]]]:
        """Every block that KV events told of with its holders, in pieces."""
        ...

    def snapshot(self) -> Iterator[bytes]:
        """What KV events told, for another's warm start, in pieces."""
        ...

    async def engine_metrics(self) -> str:
        """The workers' own metrics as one Prometheus text with a `worker` label."""
        ...
