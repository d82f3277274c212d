"""Endpoint templates: one line of configuration for the KV events of a whole fleet.

`tcp://{host}:{port+1000}` is filled in for each worker from its URL and its place in the list. Between braces
stand `host`, `port` (of its HTTP API), `index` (from 0), `rank` (of data parallelism, from 0), whole numbers
and `+ - *`. How many ranks there are, only the worker knows: what depends on them is filled in last.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from router.worker_address import WorkerAddress

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_FACTOR = re.compile(r"\s*([a-z]+|\d+)\s*")
_RANK_TERM = re.compile(r"\{(-?\d+)([+-]\d+)\*rank\}")
_SCHEMES = ("tcp://", "ipc://", "bind:tcp://", "bind:ipc://")
_PORT_MAX = 65535
_IPC_PATH_BYTES = 107
"""What fits into Linux' sockaddr_un with the zero at its end."""


class TemplateError(ValueError):
    """The template cannot be filled in; the text says what is wrong with it."""


class _Number(NamedTuple):
    """`constant + per_rank * rank`."""

    constant: int
    per_rank: int = 0

    def __str__(self) -> str:
        return f"{{{self.constant}{self.per_rank:+d}*rank}}" if self.per_rank else str(self.constant)


def fill(template: str, address: WorkerAddress, *, index: int) -> str:
    """The endpoint of one worker, for `at_rank` to make that of a rank of it. Raises TemplateError."""
    numbers = {
        "port": None if address.port is None else _Number(address.port),
        "index": _Number(index),
        "rank": _Number(0, 1),
    }

    def value(match: re.Match[str]) -> str:
        expression = match.group(1).strip()
        return address.bracketed_host if expression == "host" else str(_sum(expression, numbers))

    endpoint = _PLACEHOLDER.sub(value, template)
    _check(_with_rank(endpoint, 0))
    return endpoint


def at_rank(endpoint: str, rank: int) -> str:
    """The endpoint of a data-parallel rank: where the template said it, else `rank` ports further, as engines
    count. Raises TemplateError where one endpoint would have to serve several ranks."""
    filled = _with_rank(endpoint, rank)
    if filled == endpoint and rank:
        if "tcp://" not in endpoint:
            raise TemplateError(
                f"'{endpoint}' is one socket for several data-parallel ranks: expected a tcp:// endpoint, or "
                "{rank} in its path"
            )
        place, _, port = endpoint.rpartition(":")
        filled = f"{place}:{int(port) + rank}"
    _check(filled)
    return filled


def _with_rank(endpoint: str, rank: int) -> str:
    return _RANK_TERM.sub(lambda match: str(int(match.group(1)) + int(match.group(2)) * rank), endpoint)


def _sum(expression: str, numbers: dict[str, _Number | None]) -> _Number:
    constant = per_rank = 0
    for sign, term in re.findall(r"(^|[+-])([^+-]*)", expression):
        product = _product(term, expression, numbers)
        factor = -1 if sign == "-" else 1
        constant += factor * product.constant
        per_rank += factor * product.per_rank
    return _Number(constant, per_rank)


def _product(term: str, expression: str, numbers: dict[str, _Number | None]) -> _Number:
    product = _Number(1)
    for factor in term.split("*"):
        number = _factor(factor, expression, numbers)
        if product.per_rank and number.per_rank:
            raise TemplateError(f"'{{{expression}}}': rank may stand once in a product")
        product = _Number(
            product.constant * number.constant,
            product.constant * number.per_rank + product.per_rank * number.constant,
        )
    return product


def _factor(factor: str, expression: str, numbers: dict[str, _Number | None]) -> _Number:
    match = _FACTOR.fullmatch(factor)
    name = match.group(1) if match else ""
    if name.isdigit():
        return _Number(int(name))
    if name not in numbers:
        raise TemplateError(
            f"'{{{expression}}}': expected {{host}}, or a sum of {', '.join(numbers)} and whole numbers"
        )
    if (number := numbers[name]) is None:
        raise TemplateError(f"'{{{expression}}}': a worker behind a Unix socket has no {name}")
    return number


_TCP = re.compile(r"tcp://(\[[^\[\]]+\]|[^:/\[\]]+):(\d+)")


def _check(endpoint: str) -> None:
    """One without anything left to fill in."""
    if "{" in endpoint or "}" in endpoint:
        raise TemplateError(f"'{endpoint}': a brace without its partner")
    if not endpoint.startswith(_SCHEMES):
        raise TemplateError(f"'{endpoint}': expected {', '.join(_SCHEMES)}...")
    address = endpoint.removeprefix("bind:")
    if address.startswith("tcp://"):
        _check_tcp(endpoint, address)
    elif len(path := os.fsencode(address.removeprefix("ipc://"))) > _IPC_PATH_BYTES:
        raise TemplateError(
            f"'{endpoint}': its path has {len(path)} bytes, and a Unix socket's at most {_IPC_PATH_BYTES}"
        )


def _check_tcp(endpoint: str, address: str) -> None:
    match = _TCP.fullmatch(address)
    if match is None or not 0 < int(match.group(2)) <= _PORT_MAX:
        raise TemplateError(f"'{endpoint}': expected tcp://host:port with a port from 1 to {_PORT_MAX}")
    host, port = match.groups()
    if host == "*" and address == endpoint:
        raise TemplateError(
            f"'{endpoint}': * is where the engine listens, not where to connect to; expected "
            f"tcp://{{host}}:{port}, or bind:{endpoint} when the engine connects"
        )
