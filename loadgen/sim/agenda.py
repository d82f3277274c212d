"""What is to happen when, on the virtual clock."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Act = Callable[[Any, float], None]
"""Called with its subject and the time, seconds."""


class Agenda:
    """In the order of time; what is planned for the same moment happens in the order in which it was
    planned."""

    def __init__(self) -> None:
        self._planned: list[tuple[float, int, Act, Any]] = []
        self._num_planned = 0

    def plan(self, at: float, act: Act, subject: object) -> None:
        self._num_planned += 1
        heappush(self._planned, (at, self._num_planned, act, subject))

    def carry_out_next(self) -> float:
        """Returns when that was."""
        at, _order, act, subject = heappop(self._planned)
        act(subject, at)
        return at
