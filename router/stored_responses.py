"""Which worker stored which response of the responses API: later requests about one must go there."""

from __future__ import annotations

import re
from typing import NamedTuple

from policies.types import WorkerId
from router.limits import RESPONSE_ID_SEARCH_BYTES, STORED_RESPONSES_MAX

_RESPONSE_ID = re.compile(rb'"id"\s*:\s*"(resp_[\w-]{1,128})"')


class StoredAt(NamedTuple):
    """Where a response lies, and the model that made it."""

    worker_id: WorkerId
    model: str


class StoredResponses:
    """Bounded; the oldest are forgotten first."""

    def __init__(self, capacity: int = STORED_RESPONSES_MAX) -> None:
        self._capacity = capacity
        self._places: dict[str, StoredAt] = {}

    def note(self, beginning: bytes, place: StoredAt) -> None:
        """`beginning`: the first bytes of an answer, whole or streamed, in which a response names itself."""
        found = _RESPONSE_ID.search(beginning, 0, RESPONSE_ID_SEARCH_BYTES)
        if found is None:
            return
        if len(self._places) >= self._capacity:
            del self._places[next(iter(self._places))]
        self._places[found.group(1).decode()] = place

    def find(self, response_id: str) -> StoredAt | None:
        return self._places.get(response_id)
