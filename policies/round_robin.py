"""`round_robin`: the candidate whose last turn is longest ago.

A counter modulo the number of candidates bunches requests whenever the set of candidates changes (a worker
joins, one is excluded from a retry, two models alternate). Remembering each worker's last turn does not.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from policies.base import BasePolicy
from policies.limits import TURNS_REMEMBERED
from policies.types import Candidates, Choice, RoutingRequest, Worker, WorkerId


class RoundRobin(BasePolicy):
    """Takes the least recently used candidate; those never used come first, in the order of their ids."""

    name = "round_robin"

    def __init__(self, parameters: Mapping[str, object] | None = None) -> None:
        super().__init__(parameters)
        self._turns = 0
        self._last_turn: dict[WorkerId, int] = {}  # in the order of the turns

    def choose(self, request: RoutingRequest, candidates: Candidates, rng: random.Random) -> Choice:
        workers, last_turn = candidates.workers, self._last_turn
        turns = [last_turn.get(worker.id, 0) for worker in workers]
        longest_ago = min(turns)
        if longest_ago:
            row = turns.index(longest_ago)
        else:
            row = min((worker.id, row) for row, worker in enumerate(workers) if not turns[row])[1]
        return Choice(row, reason="longest without a turn")

    def placed(self, worker: Worker) -> None:
        self._turns += 1
        self._last_turn.pop(worker.id, None)
        self._last_turn[worker.id] = self._turns
        if len(self._last_turn) > TURNS_REMEMBERED:
            del self._last_turn[next(iter(self._last_turn))]
