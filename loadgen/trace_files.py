"""Opens trace files: plain, gzip or xz, by their ending; a folder stands for the one trace in it."""

from __future__ import annotations

import gzip
import lzma
from itertools import islice
from pathlib import Path
from typing import BinaryIO, cast

from loadgen.traces import TraceError, TraceRequest, parse_mooncake, smear


def read_trace(path: Path, limit: int | None = None) -> list[TraceRequest]:
    """The first `limit` requests, arrivals smeared over their steps. Raises TraceError naming file and
    line."""
    try:
        with _open(_trace_in(path)) as lines:
            requests = list(islice(parse_mooncake(lines), limit))
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise TraceError(f"{path}: {error}") from error
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from error
    if not requests:
        raise TraceError(f"{path}: no requests in it")
    return smear(requests)


def _trace_in(path: Path) -> Path:
    if not path.is_dir():
        return path
    traces = sorted(path.glob("*.jsonl*"))
    if len(traces) != 1:
        raise TraceError(f"a folder with {len(traces)} traces (*.jsonl*); name the file")
    return traces[0]


def _open(path: Path) -> BinaryIO:
    if path.suffix == ".gz":
        return cast("BinaryIO", gzip.open(path, "rb"))
    if path.suffix == ".xz":
        return cast("BinaryIO", lzma.open(path, "rb"))
    return path.open("rb")
