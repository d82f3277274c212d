"""How a policy is written where it is named in a text: `NAME` or `NAME,key=value,...`.

Only the text; which policies there are, and what a value may be, is known to the table and the declarations.
"""

from __future__ import annotations

from collections.abc import Mapping

from policies.parameters import Parameter, ParameterValue, PolicyError


def name_of(text: str) -> str:
    """A policy's or parameter's name as the tables have it: in lower case, with underscores."""
    return text.strip().lower().replace("-", "_")


def take_apart(text: str) -> tuple[str, dict[str, str]]:
    """The name and the parameters' texts. Raises PolicyError for what is not of that form."""
    name, *pieces = text.split(",")
    parameters: dict[str, str] = {}
    for piece in pieces:
        key, equals, value = piece.partition("=")
        key, value = name_of(key), value.strip()
        if not (key and equals and value):
            raise PolicyError(f"{piece.strip()!r} in {text!r} is no key=value; write NAME,key=value,...")
        if key in parameters:
            raise PolicyError(f"{key} is given twice in {text!r}")
        parameters[key] = value
    return name_of(name), parameters


def split_list(text: str) -> list[str]:
    """The policies of a list with commas: a piece with an equals sign belongs to the policy before it."""
    policies: list[str] = []
    for piece in text.split(","):
        if policies and "=" in piece:
            policies[-1] += f",{piece.strip()}"
        else:
            policies.append(piece.strip())
    return policies


def spell(name: str, parameters: Mapping[str, ParameterValue], declared: Mapping[str, Parameter]) -> str:
    """The shortest text for a policy: its name, and the parameters that are not at their default."""
    changed = [
        f"{key}={_spell_value(value)}" for key, value in parameters.items() if value != declared[key].default
    ]
    return ",".join([name, *changed])


def _spell_value(value: ParameterValue) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else repr(value).removesuffix(".0")
