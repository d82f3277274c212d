"""The contract of a policy.

A policy is one file with one class: it states what it needs, and chooses a row of the candidates. It meets
no index, no network and no clock; chance comes from the `rng` that it is handed. A contract test runs over
every row of the `POLICIES` table.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

from policies.parameters import Parameter, ParameterValue, fill_in
from policies.types import Candidates, Choice, RoutingRequest, Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Which columns a policy reads; the hot path computes no more than these.

    Plain switches: asking an `enum.Flag` takes 0.4 us, several times a request.
    """

    overlap: bool = False
    """`device_overlap`, `host_overlap`, `disk_overlap`, `num_held_blocks`, `served_last_row`."""
    loads: bool = False
    """`active_prefill_blocks`, `num_active_requests`."""
    decode_blocks: bool = False
    """`potential_decode_blocks`."""
    times: bool = False
    """`times`."""
    session: bool = False
    """`RoutingRequest.session`."""


class TierWeights(NamedTuple):
    """How much of a block's prefill is saved when it is held in host memory or on disk: 0 nothing, 1 all."""

    host: float = 0.75
    disk: float = 0.25


class Policy(Protocol):
    """Chooses one of at least one candidate."""

    @property
    def name(self) -> str: ...

    @property
    def needs(self) -> Needs: ...

    @property
    def parameters(self) -> Mapping[str, ParameterValue]:
        """The parameters in force, as shown by `GET /policy`."""
        ...

    @property
    def tier_weights(self) -> TierWeights:
        """What the booking of a request's prefill takes as cached, besides its blocks on the device."""
        ...

    @property
    def assumes_kv_reuse(self) -> bool:
        """Whether active requests that share a prefix on one worker share its blocks there."""
        ...

    def choose(self, request: RoutingRequest, candidates: Candidates, rng: random.Random) -> Choice:
        """The row to take. Leaves the policy as it was: what a choice teaches is learnt in `placed`."""
        ...

    def placed(self, worker: Worker) -> None:
        """The choice was carried out. Memory is kept here, so that previews leave no trace."""
        ...


class BasePolicy:
    """What most policies have in common: parameters checked against their declaration, and no memory."""

    name: ClassVar[str]
    needs: Needs = Needs()
    PARAMETERS: ClassVar[Mapping[str, Parameter]] = {}
    tier_weights: TierWeights = TierWeights()
    assumes_kv_reuse: bool = True

    def __init__(self, parameters: Mapping[str, object] | None = None) -> None:
        """Raises PolicyError for an unknown parameter or a value out of range."""
        self.parameters: Mapping[str, ParameterValue] = fill_in(self.PARAMETERS, parameters, policy=self.name)

    def number(self, name: str) -> float:
        """The value of a parameter that is a number or a switch."""
        return float(self.parameters[name])

    def placed(self, worker: Worker) -> None:
        """Nothing to remember."""
