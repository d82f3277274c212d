"""What the policies contribute to the table of options: their names, and what their parameters may be."""

from __future__ import annotations

from policies import ALIASES, POLICIES, Parameter, parameters_of
from router.config.values import Value, boolean, choice, number


def policy_value() -> Value:
    return choice(tuple(POLICIES), ALIASES)


def parameter_values(policy: str) -> dict[str, Value]:
    """What the parameters of that policy may be, by name."""
    return {name: _parameter_value(parameter) for name, parameter in parameters_of(policy).items()}


def _parameter_value(parameter: Parameter) -> Value:
    if parameter.is_switch:
        return boolean()
    return number(parameter.minimum, parameter.maximum)
