"""Messages changed at random, by a generator that is handed in: the same seed makes the same bytes."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from itertools import pairwise

from tests.fuzz.corpus import WORDS

MESSAGE_BYTES_MAX = 20_000
CHANGES_MAX = 4
_NUMBER = re.compile(rb"\d+")
_NUMBERS = (
    b"0",
    b"1",
    b"5",
    b"6",
    b"00005",
    b"65536",
    b"4294967296",
    b"18446744073709551621",
    b"-1",
    b"5 5",
    b"",
)

Mutator = Callable[[random.Random, bytes, Sequence[bytes]], bytes]


def mutated(rng: random.Random, corpus: Sequence[bytes]) -> bytes:
    """A member of the corpus with some changes; one in ten is left as it is."""
    data = rng.choice(corpus)
    if rng.random() < 0.1:
        return data
    for _ in range(rng.randint(1, CHANGES_MAX)):
        data = rng.choice(MUTATORS)(rng, data, corpus)
    return data[:MESSAGE_BYTES_MAX]


def pieces(rng: random.Random, data: bytes) -> list[bytes]:
    """The data in writes of its own: in one, in a few, or byte by byte."""
    kind = rng.random()
    if kind < 0.3:
        return [data]
    if kind < 0.4 and len(data) < 400:
        return [data[i : i + 1] for i in range(len(data))]
    cuts = sorted({0, len(data), *(rng.randint(0, len(data)) for _ in range(rng.randint(1, 8)))})
    return [data[start:end] for start, end in pairwise(cuts)]


def _span(rng: random.Random, data: bytes) -> tuple[int, int]:
    start = rng.randint(0, len(data))
    return start, min(len(data), start + rng.choice((1, 1, 2, 4, 16, 64)))


def _cut_out(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    start, end = _span(rng, data)
    return data[:start] + data[end:]


def _repeat(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    start, end = _span(rng, data)
    return data[:end] + data[start:end] * rng.choice((1, 1, 2, 50)) + data[end:]


def _put_in(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    at = rng.randint(0, len(data))
    return data[:at] + rng.choice(WORDS) + data[at:]


def _put_in_a_line(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """At the begin of a line, where headers and chunk sizes stand."""
    starts = [match.end() for match in re.finditer(rb"\n", data)] or [0]
    at = rng.choice(starts)
    return data[:at] + rng.choice(WORDS) + data[at:]


def _flip(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    if not data:
        return data
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]


def _change_number(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    numbers = list(_NUMBER.finditer(data))
    if not numbers:
        return data
    start, end = rng.choice(numbers).span()
    return data[:start] + rng.choice(_NUMBERS) + data[end:]


def _swap_lines(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    lines = data.split(b"\r\n")
    a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]
    return b"\r\n".join(lines)


def _change_line_end(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    lines = data.split(b"\r\n")
    at = rng.randrange(len(lines))
    return (
        b"\r\n".join(lines[: at + 1])
        + rng.choice((b"\n", b"\r", b"\r\r\n", b" \r\n"))
        + b"\r\n".join(lines[at + 1 :])
    )


def _truncate(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    return data[: rng.randint(0, len(data))]


def _splice(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    other = rng.choice(corpus)
    return data[: rng.randint(0, len(data))] + other[rng.randint(0, len(other)) :]


MUTATORS: tuple[Mutator, ...] = (
    _cut_out,
    _repeat,
    _put_in,
    _put_in_a_line,
    _put_in_a_line,
    _flip,
    _change_number,
    _change_number,
    _swap_lines,
    _change_line_end,
    _truncate,
    _splice,
)
