"""How a policy declares its parameters, and how a value for one is checked.

A declaration is the single source of the command-line flag, the configuration key and the validation of a
change while running. What a parameter means for the choice stands in the policy's own file.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

FLOAT_MAX = sys.float_info.max

ParameterValue = float | int | bool | str
"""An `int` is taken wherever a `float` is declared; a `str` is one of a few words."""

_SWITCH_WORDS = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


class PolicyError(ValueError):
    """No such policy or parameter, or a value out of range. The message lists what is allowed."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One setting of a policy.

    `minimum` and `maximum` are inclusive; `maximum` None means any finite value. For a switch (a bool
    default) and for one of `words` both are ignored.
    """

    name: str
    default: ParameterValue
    minimum: float
    maximum: float | None
    help: str
    words: tuple[str, ...] = ()

    @property
    def is_switch(self) -> bool:
        return isinstance(self.default, bool)

    @property
    def allowed(self) -> str:
        """The allowed values in words."""
        if self.words:
            return "one of " + ", ".join(self.words)
        if self.is_switch:
            return "true or false"
        if self.maximum is None:
            return f"a finite number >= {self.minimum:g}"
        return f"a number from {self.minimum:g} to {self.maximum:g}"

    def check(self, value: object) -> ParameterValue:
        """`value` if it is allowed, a number as float. Raises PolicyError."""
        if self.words:
            if value in self.words:
                return str(value)
        elif self.is_switch:
            if isinstance(value, bool):
                return value
        elif isinstance(value, int | float) and not isinstance(value, bool) and self._in_range(value):
            return float(value)
        raise PolicyError(f"{self.name} must be {self.allowed}, not {value!r}")

    def read(self, text: str) -> ParameterValue:
        """The value that `text` spells. Raises PolicyError."""
        word: object = text.lower().replace("_", "-")
        if self.is_switch:
            word = _SWITCH_WORDS.get(text.lower(), text)
        elif not self.words:
            with contextlib.suppress(ValueError):
                word = float(text)
        try:
            return self.check(word)
        except PolicyError:
            raise PolicyError(f"{self.name} must be {self.allowed}, not {text!r}") from None

    def _in_range(self, value: float) -> bool:
        # An int may be beyond every float; comparing it is exact, converting it would raise.
        return self.minimum <= value <= (FLOAT_MAX if self.maximum is None else self.maximum)


def table_of(*parameters: Parameter) -> Mapping[str, Parameter]:
    """Declarations by name, in the order given."""
    return {parameter.name: parameter for parameter in parameters}


def fill_in(
    declared: Mapping[str, Parameter], given: Mapping[str, object] | None, *, policy: str
) -> dict[str, ParameterValue]:
    """Every declared parameter with its given or default value. Raises PolicyError."""
    given = given or {}
    require_known(declared, given, policy=policy)
    return {
        name: parameter.check(given[name]) if name in given else parameter.default
        for name, parameter in declared.items()
    }


def require_known(declared: Collection[str], given: Iterable[str], *, policy: str) -> None:
    """Raises PolicyError, which names every parameter that is not declared, and those that are."""
    unknown = [name for name in given if name not in declared]
    if unknown:
        raise PolicyError(
            f"policy {policy} has no parameter {', '.join(map(repr, unknown))}; "
            f"it has: {', '.join(declared) or 'none'}"
        )
