"""What a single value may be: parsers that take text (flags, environment) or a file's own types.

No option is named here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

_Number = TypeVar("_Number", int, float)

_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZE_UNITS = {"b": 1} | {
    unit: factor**power
    for power, letter in enumerate("kmgt", start=1)
    for unit, factor in ((f"{letter}b", 1000), (f"{letter}ib", 1024))
}
_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")


@dataclass(frozen=True, slots=True)
class Value:
    """`parse` turns a raw value into the setting's type or raises ValueError, whose text is not shown;
    `allowed` completes the sentence "must be ...". A `switch` needs no word on the command line."""

    parse: Callable[[object], object]
    allowed: str
    metavar: str
    switch: bool = False


def text(allowed: str, *, empty: bool = False, metavar: str = "TEXT") -> Value:
    """Words without the spaces around them; `allowed` describes what is meant, which is not checked here."""

    def parse(raw: object) -> str:
        word = _text(raw)
        if not word and not empty:
            raise ValueError(raw)
        return word

    return Value(parse, allowed, metavar)


def key() -> Value:
    """A secret that fits in a header: no spaces, never empty (an empty key would let everyone in)."""

    def parse(raw: object) -> str:
        word = _text(raw)
        if not re.fullmatch(r"[!-~]+", word):
            raise ValueError
        return word

    return Value(parse, "a key of visible ASCII characters, or @FILE", "KEY")


def boolean() -> Value:
    def parse(raw: object) -> bool:
        if isinstance(raw, bool):
            return raw
        word = _text(raw).lower()
        if word not in _TRUE + _FALSE:
            raise ValueError(raw)
        return word in _TRUE

    return Value(parse, "true or false", "BOOL", switch=True)


def choice(names: Sequence[str], aliases: Mapping[str, str] | None = None) -> Value:
    """One of `names`, in any case and with dashes or underscores; an alias means what it maps to."""
    meanings = {name: name for name in names} | dict(aliases or {})

    def parse(raw: object) -> str:
        word = _text(raw).lower().replace("-", "_")
        if word not in meanings:
            raise ValueError(word)
        return meanings[word]

    return Value(parse, "one of " + ", ".join(names), "NAME")


def integer(minimum: int | None = None, maximum: int | None = None, *, metavar: str = "N") -> Value:
    def parse(raw: object) -> int:
        if isinstance(raw, bool) or not isinstance(raw, int | str):
            raise ValueError(raw)
        return _within(int(raw), minimum, maximum)

    return Value(parse, "a whole number" + _range_words(minimum, maximum), metavar)


def number(minimum: float | None = None, maximum: float | None = None) -> Value:
    def parse(raw: object) -> float:
        return _within(_finite(raw), minimum, maximum)

    return Value(parse, "a number" + _range_words(minimum, maximum), "X")


def duration(*, zero: bool = False) -> Value:
    """Seconds as a number, or with a unit: 500ms, 30s, 2m, 1h."""

    def parse(raw: object) -> float:
        seconds = _with_unit(raw, _DURATION_UNITS)
        if seconds < 0 or (seconds == 0 and not zero):
            raise ValueError(raw)
        return seconds

    above = "of 0 or more" if zero else "above 0"
    return Value(parse, f"a duration {above}: seconds, or with a unit (500ms, 30s, 2m, 1h)", "SECONDS")


def byte_size() -> Value:
    """At least one byte: a number, or with a unit: 64MiB, 64MB, 512KiB."""

    def parse(raw: object) -> int:
        return _within(int(_with_unit(raw, _SIZE_UNITS)), 1, None)

    return Value(parse, "a size above 0: bytes, or with a unit (64MiB, 64MB, 512KiB)", "SIZE")


def optional(value: Value, *nothing: str) -> Value:
    """`value`; or None for null in a file and for each of the words in `nothing`."""

    def parse(raw: object) -> object:
        if raw is None or (isinstance(raw, str) and raw.strip().lower() in nothing):
            return None
        return value.parse(raw)

    return Value(parse, " or ".join([value.allowed, *nothing]), value.metavar)


def _text(raw: object) -> str:
    if not isinstance(raw, str):
        raise ValueError(raw)
    return raw.strip()


def _finite(raw: object) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        raise ValueError(raw)
    value = float(raw)
    if not math.isfinite(value):
        raise ValueError(raw)
    return value


def _with_unit(raw: object, units: Mapping[str, float]) -> float:
    if not isinstance(raw, str):
        return _finite(raw)
    match = re.fullmatch(r"(.*?)\s*([a-zA-Z]*)", raw.strip())
    unit = match[2].lower() if match else ""
    if match is None or (unit and unit not in units):
        raise ValueError(raw)
    return _finite(match[1]) * units.get(unit, 1)


def _within(value: _Number, minimum: float | None, maximum: float | None) -> _Number:
    if (minimum is not None and value < minimum) or (maximum is not None and value > maximum):
        raise ValueError(value)
    return value


def _range_words(minimum: float | None, maximum: float | None) -> str:
    if minimum is None and maximum is None:
        return ""
    if maximum is None:
        return f" of at least {minimum:g}"
    return f" from {minimum:g} to {maximum:g}" if minimum is not None else f" of at most {maximum:g}"
