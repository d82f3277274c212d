"""`session`: requests of one session go to one worker, whatever it holds and however busy it is.

Rendezvous hashing (Thaler and Ravishankar, "A name-based mapping scheme for rendezvous", 1996): a session
belongs to the candidate with the highest hash of both names. When a worker leaves only its own sessions move,
when one joins only those that it gets. Keys are compared as wholes, never by what they begin with.
"""

from __future__ import annotations

import random

import xxhash

from policies.base import BasePolicy, Needs
from policies.costs import cheapest
from policies.types import Candidates, Choice, RoutingRequest


class Session(BasePolicy):
    """Requests without a session go where the fewest requests are."""

    name = "session"
    needs = Needs(loads=True, session=True)

    def choose(self, request: RoutingRequest, candidates: Candidates, rng: random.Random) -> Choice:
        if request.session is None:
            row = cheapest(candidates, candidates.num_active_requests, rng).row
            return Choice(row, reason="no session, fewest requests")
        weights = [_weight(request.session, worker.id) for worker in candidates.workers]
        return Choice(weights.index(max(weights)), reason="the session's worker")


def _weight(session: str, worker_id: str) -> int:
    """The same on every gateway and at every start. NUL separates: no worker's id holds it."""
    return xxhash.xxh3_64_intdigest(f"{worker_id}\0{session}".encode("utf-8", "surrogatepass"))
