"""`random`: every candidate alike. The baseline that needs no knowledge at all."""

from __future__ import annotations

import random

from policies.base import BasePolicy
from policies.types import Candidates, Choice, RoutingRequest


class Uniform(BasePolicy):
    """Draws a row uniformly."""

    name = "random"

    def choose(self, request: RoutingRequest, candidates: Candidates, rng: random.Random) -> Choice:
        return Choice(rng.randrange(len(candidates)), reason="uniformly at random")
