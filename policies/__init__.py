"""WHO SHOULD SERVE THIS REQUEST. One file for each policy, one row for each in the table below.

Nothing here knows the index, the network or a clock; `types` is the vocabulary, `base` the contract.
"""

from __future__ import annotations

from collections.abc import Mapping

from policies.base import BasePolicy, Needs, Policy, TierWeights
from policies.kv import Kv
from policies.least_loaded import LeastLoaded
from policies.parameters import Parameter, ParameterValue, PolicyError
from policies.power_of_two import PowerOfTwo
from policies.round_robin import RoundRobin
from policies.uniform import Uniform

__all__ = [
    "ALIASES",
    "POLICIES",
    "BasePolicy",
    "Needs",
    "Parameter",
    "ParameterValue",
    "Policy",
    "PolicyError",
    "TierWeights",
    "make_policy",
    "parameters_of",
]

POLICIES: dict[str, type[Kv | LeastLoaded | PowerOfTwo | RoundRobin | Uniform]] = {
    "random": Uniform,
    "round_robin": RoundRobin,
    "least_loaded": LeastLoaded,
    "power_of_two": PowerOfTwo,
    "kv": Kv,
}

ALIASES: dict[str, str] = {
    "roundrobin": "round_robin",
    "kvaware": "kv",
    "kv_aware": "kv",
    "prefixaware": "kv",
}
"""Names that users of other routers type, and the policy here that does the job."""


def make_policy(name: str, parameters: Mapping[str, object] | None = None) -> Policy:
    """The policy of that name or alias. Raises PolicyError, which lists what is allowed."""
    return _policy_class(name)(parameters)


def parameters_of(name: str) -> Mapping[str, Parameter]:
    """What may be set for the policy of that name or alias, by parameter name. Raises PolicyError."""
    return _policy_class(name).PARAMETERS


def _policy_class(name: str) -> type[Kv | LeastLoaded | PowerOfTwo | RoundRobin | Uniform]:
    known = ALIASES.get(name, name)
    if known not in POLICIES:
        raise PolicyError(f"unknown policy {name!r}; known: {', '.join(POLICIES)}")
    return POLICIES[known]
