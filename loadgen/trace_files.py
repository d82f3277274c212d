"""Opens trace files: plain, gzip or xz, by their ending; a folder stands for the one trace in it."""

from __future__ import annotations

import gzip
import lzma
import random
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

from loadgen.trace_formats import parse_trace
from loadgen.traces import Trace, TraceError, TraceRequest, parse_mooncake, smear

_T = TypeVar("_T")


def read_trace(path: Path, limit: int | None = None) -> list[TraceRequest]:
    """The first `limit` requests of a trace in the Mooncake format, arrivals smeared over their steps. Raises
    TraceError naming file and line."""
    requests = _read(path, lambda lines: list(islice(parse_mooncake(lines), limit)))
    if not requests:
        raise TraceError(f"{path}: no requests in it")
    return smear(requests)


def read_any_trace(path: Path, rng: random.Random, limit: int | None = None) -> Trace:
    """The same for any of the formats; see `trace_formats` for what chance decides."""
    trace = _read(path, lambda lines: parse_trace(lines, rng, limit))
    if not trace.requests:
        raise TraceError(f"{path}: no requests in it")
    return trace


def _read(path: Path, parse: Callable[[BinaryIO], _T]) -> _T:
    try:
        with _open(_trace_in(path)) as lines:
            return parse(lines)
    except (OSError, EOFError, lzma.LZMAError, TraceError) as error:
        raise TraceError(f"{path}: {error}") from error


def _trace_in(path: Path) -> Path:
    if not path.is_dir():
        return path
    traces = sorted([*path.glob("*.jsonl*"), *path.glob("*.csv*")])
    if len(traces) != 1:
        raise TraceError(f"a folder with {len(traces)} traces (*.jsonl*, *.csv*); name the file")
    return traces[0]


def _open(path: Path) -> BinaryIO:
    if path.suffix == ".gz":
        return cast("BinaryIO", gzip.open(path, "rb"))
    if path.suffix == ".xz":
        return cast("BinaryIO", lzma.open(path, "rb"))
    return path.open("rb")
