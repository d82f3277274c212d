"""Releases of engines compared: what one can do is a matter of its number."""

from __future__ import annotations

import re

_NUMBERS = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?")

Release = tuple[int, int, int]


def is_from(version: str, first: Release) -> bool:
    """Whether `version` is `first` or a later one. One that is no number is not taken for new."""
    match = _NUMBERS.match(version)
    return match is not None and tuple(int(number or 0) for number in match.groups()) >= first


def why_no_rank(engine: str, version: str, first: Release) -> str:
    """Why a request can't be told its data-parallel rank; "" where it can, which begins with `first`."""
    if is_from(version, first):
        return ""
    newer = ".".join(map(str, first))
    return f"{engine} {version or 'of unknown version'} lets nobody choose one ({newer} and newer do)"
