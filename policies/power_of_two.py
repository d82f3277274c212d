"""`power_of_two`: of two candidates drawn at random, the one with fewer requests.

Two choices are enough to keep the fullest worker close to the mean (Mitzenmacher, "The power of two choices
in randomized load balancing", 2001), and several gateways that cannot see each other do not herd.
"""

from __future__ import annotations

import random

from policies.base import BasePolicy, Needs
from policies.types import Candidates, Choice, RoutingRequest


class PowerOfTwo(BasePolicy):
    """The cost of a row is its number of active requests; the better of two drawn rows is taken."""

    name = "power_of_two"
    needs = Needs(loads=True)

    def choose(self, request: RoutingRequest, candidates: Candidates, rng: random.Random) -> Choice:
        loads = candidates.num_active_requests
        if len(candidates) == 1:
            return Choice(0, loads, "only candidate")
        first, second = rng.sample(range(len(candidates)), 2)
        # The order of the draw is random, so taking the first of equals favours nobody.
        row = second if loads[second] < loads[first] else first
        return Choice(row, loads, "fewer requests of two drawn")
