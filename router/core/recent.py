"""Short memories of the core, bounded: the last decisions, and which worker served a prefix last."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence

from indexer.blocks import BlockHash
from policies.types import Decision, WorkerId
from router.core.limits import DECISIONS_KEPT, PREFIX_SEARCH_BLOCKS, PREFIXES_REMEMBERED


class RecentDecisions:
    """A ring of the last decisions, found again by request id (the latest attempt of it)."""

    def __init__(self, capacity: int = DECISIONS_KEPT) -> None:
        self._capacity = capacity
        self._ring: deque[Decision] = deque()
        self._by_id: dict[str, Decision] = {}

    def add(self, decision: Decision) -> None:
        if len(self._ring) == self._capacity:
            self._forget(self._ring.popleft())
        self._ring.append(decision)
        self._by_id[decision.request_id] = decision

    def _forget(self, oldest: Decision) -> None:
        if self._by_id.get(oldest.request_id) is oldest:
            del self._by_id[oldest.request_id]

    def latest(self) -> list[Decision]:
        """Newest first."""
        return list(reversed(self._ring))

    def get(self, request_id: str) -> Decision | None:
        return self._by_id.get(request_id)


class ServedLast:
    """Deepest block of a prompt -> the worker that it went to; the least recently noted go first."""

    def __init__(self, capacity: int = PREFIXES_REMEMBERED) -> None:
        self._capacity = capacity
        # In the order of use. A plain dict finds its first key ever more slowly as first keys are deleted.
        self._workers: OrderedDict[BlockHash, WorkerId] = OrderedDict()

    def note(self, chain: Sequence[BlockHash], worker_id: WorkerId) -> None:
        if not chain:
            return
        self._workers[chain[-1]] = worker_id
        self._workers.move_to_end(chain[-1])
        if len(self._workers) > self._capacity:
            self._workers.popitem(last=False)

    def forget(self, chain: Sequence[BlockHash], worker_id: WorkerId) -> None:
        """The worker did not serve this prompt after all."""
        if chain and self._workers.get(chain[-1]) == worker_id:
            del self._workers[chain[-1]]

    def find(self, chain: Sequence[BlockHash]) -> WorkerId | None:
        """The worker of the deepest block of `chain` that ended an earlier prompt."""
        workers = self._workers
        known = filter(workers.__contains__, chain[: -PREFIX_SEARCH_BLOCKS - 1 : -1])
        return workers.get(next(known, -1))
