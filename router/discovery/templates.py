"""Endpoint templates: one line of configuration for the KV events of a whole fleet.

`tcp://{host}:{port+1000}` is filled in for each worker from its URL and its place in the list. Between braces
stand `host`, `port` (of its HTTP API), `index` (from 0), whole numbers and `+ - *`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from router.worker_address import WorkerAddress

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_FACTOR = re.compile(r"\s*([a-z]+|\d+)\s*")
_NUMBERS = ("port", "index")
_SCHEMES = ("tcp://", "ipc://", "bind:tcp://", "bind:ipc://")


class TemplateError(ValueError):
    """The template cannot be filled in; the text says what is wrong with it."""


def fill(template: str, address: WorkerAddress, *, index: int) -> str:
    """The endpoint of one worker. Raises TemplateError."""
    numbers = {"port": address.port, "index": index}

    def value(match: re.Match[str]) -> str:
        expression = match.group(1).strip()
        return address.bracketed_host if expression == "host" else str(_sum(expression, numbers))

    endpoint = _PLACEHOLDER.sub(value, template)
    _check(endpoint)
    return endpoint


def _sum(expression: str, numbers: Mapping[str, int | None]) -> int:
    total = 0
    for sign, term in re.findall(r"(^|[+-])([^+-]*)", expression):
        product = _product(term, expression, numbers)
        total += -product if sign == "-" else product
    return total


def _product(term: str, expression: str, numbers: Mapping[str, int | None]) -> int:
    product = 1
    for factor in term.split("*"):
        match = _FACTOR.fullmatch(factor)
        name = match.group(1) if match else ""
        if name.isdigit():
            product *= int(name)
        elif name in numbers:
            number = numbers[name]
            if number is None:
                raise TemplateError(f"'{{{expression}}}': a worker behind a Unix socket has no {name}")
            product *= number
        else:
            raise TemplateError(
                f"'{{{expression}}}': expected {{host}}, or a sum of {', '.join(_NUMBERS)} and whole numbers"
            )
    return product


_TCP = re.compile(r"tcp://(\[[^\[\]]+\]|[^:/\[\]]+):(\d+)")


def _check(endpoint: str) -> None:
    if "{" in endpoint or "}" in endpoint:
        raise TemplateError(f"'{endpoint}': a brace without its partner")
    if not endpoint.startswith(_SCHEMES):
        raise TemplateError(f"'{endpoint}': expected {', '.join(_SCHEMES)}...")
    address = endpoint.removeprefix("bind:")
    if address.startswith("tcp://"):
        match = _TCP.fullmatch(address)
        if match is None or not 0 < int(match.group(2)) < 65536:
            raise TemplateError(f"'{endpoint}': expected tcp://host:port with a port from 1 to 65535")
