"""What the load tools' command lines have in common: parsers that look alike, numbers within bounds, the
workload that is asked for. Each tool's own options are in its own file.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from pathlib import Path

from loadgen.trace_files import read_trace
from loadgen.traces import TraceRequest
from loadgen.workload import synthesize

INTERRUPTED = 130
"""Exit code of a program ended by Ctrl-C, as shells have it."""


def command_line(name: str, description: str) -> argparse.ArgumentParser:
    """The parser of `kvgate NAME`."""
    return argparse.ArgumentParser(
        prog=f"kvgate {name}",
        description=description,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )


def whole_number(minimum: int, maximum: int | None = None) -> Callable[[str], int]:
    """Reads a number from `minimum` to `maximum`, both included."""
    allowed = f"at least {minimum}" if maximum is None else f"{minimum} to {maximum}"

    def number(text: str) -> int:
        value = int(text)
        if value < minimum or (maximum is not None and value > maximum):
            raise argparse.ArgumentTypeError(f"must be {allowed}")
        return value

    return number


def above_zero(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError("must be above 0")
    return value


def zero_or_more(text: str) -> float:
    value = float(text)
    if not value >= 0:
        raise argparse.ArgumentTypeError("must not be below 0")
    return value


def share(text: str) -> float:
    """Reads a number from 0 up to, but not including, 1."""
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError("must be from 0 up to, but not including, 1")
    return value


def workload(trace: Path | None, num_requests: int, seed: int) -> list[TraceRequest]:
    """The first requests of a trace, or synthetic ones. Raises TraceError."""
    if trace is not None:
        return read_trace(trace, num_requests)
    return synthesize(num_requests, random.Random(seed))
