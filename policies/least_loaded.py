"""`least_loaded`: the candidate with the fewest requests booked and not ended."""

from __future__ import annotations

import random

from policies.base import BasePolicy, Needs
from policies.costs import cheapest
from policies.types import Candidates, Choice, RoutingRequest


class LeastLoaded(BasePolicy):
    """The cost of a row is its number of active requests, as booked at dispatch."""

    name = "least_loaded"
    needs = Needs(loads=True)

    def choose(self, request: RoutingRequest, candidates: Candidates, rng: random.Random) -> Choice:
        return cheapest(candidates, candidates.num_active_requests, rng)
