"""WHO SHOULD SERVE THIS REQUEST. One file for each policy, one row for each in the table below.

Nothing here knows the index, the network or a clock; `types` is the vocabulary, `base` the contract.
"""

from __future__ import annotations

from collections.abc import Mapping

from policies import spelling
from policies.base import BasePolicy, Needs, Policy, TierWeights
from policies.cache_aware import CacheAware
from policies.kv import Kv
from policies.latency import Latency
from policies.least_loaded import LeastLoaded
from policies.parameters import Parameter, ParameterValue, PolicyError, require_known
from policies.power_of_two import PowerOfTwo
from policies.round_robin import RoundRobin
from policies.session import Session
from policies.sticky_until_saturated import StickyUntilSaturated
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
    "parse_policies",
    "parse_policy",
    "read_policy",
    "spell_policy",
]

_Policy = type[
    CacheAware
    | Kv
    | Latency
    | LeastLoaded
    | PowerOfTwo
    | RoundRobin
    | Session
    | StickyUntilSaturated
    | Uniform
]

POLICIES: dict[str, _Policy] = {
    "random": Uniform,
    "round_robin": RoundRobin,
    "least_loaded": LeastLoaded,
    "power_of_two": PowerOfTwo,
    "session": Session,
    "cache_aware": CacheAware,
    "sticky_until_saturated": StickyUntilSaturated,
    "kv": Kv,
    "latency": Latency,
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


def parse_policy(text: str) -> Policy:
    """The policy that `NAME` or `NAME,key=value,...` means. Raises PolicyError, which lists what is
    allowed."""
    return make_policy(*read_policy(text))


def read_policy(text: str) -> tuple[str, dict[str, ParameterValue]]:
    """The same as the name in the table and the parameters that the text gives, checked."""
    name, given = spelling.take_apart(text)
    policy = _policy_class(name)
    require_known(policy.PARAMETERS, given, policy=policy.name)
    return policy.name, {key: policy.PARAMETERS[key].read(value) for key, value in given.items()}


def parse_policies(text: str) -> list[Policy]:
    """The policies of a list with commas; `kv,temperature=0.2,random` is two. Raises PolicyError."""
    return [parse_policy(each) for each in spelling.split_list(text)]


def spell_policy(policy: Policy) -> str:
    """What `parse_policy` takes for this policy, at its shortest."""
    return spelling.spell(policy.name, policy.parameters, parameters_of(policy.name))


def _policy_class(name: str) -> _Policy:
    known = spelling.name_of(name)
    known = ALIASES.get(known, known)
    if known not in POLICIES:
        raise PolicyError(f"unknown policy {name!r}; known: {', '.join(POLICIES)}")
    return POLICIES[known]
