"""The contract of a policy.

A policy is one file with one class: it states what it needs, and chooses a row of the candidates. It meets no
index, no network and no clock; chance comes from the `rng` that it is handed. `tests/contract/test_policies.py`
runs over every row of the `POLICIES` table.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from enum import Flag, auto
from typing import Protocol

from policies.types import Candidates, Choice, RoutingRequest


class Needs(Flag):
    """Which columns a policy reads; the hot path computes no more than these."""

    NOTHING = 0
    OVERLAP = auto()
    LOADS = auto()
    SESSION = auto()


class Policy(Protocol):
    """Chooses one of at least one candidate."""

    @property
    def name(self) -> str: ...

    @property
    def needs(self) -> Needs: ...

    @property
    def parameters(self) -> Mapping[str, float | int | str | bool]:
        """The parameters in force, as shown by `GET /policy`."""
        ...

    def choose(self, request: RoutingRequest, candidates: Candidates, rng: random.Random) -> Choice: ...
