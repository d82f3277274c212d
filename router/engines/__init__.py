"""What differs between the engines over HTTP: one file each, one row in the table.

Their KV events are read in `indexer.adapters`. `tests/contract/test_engines.py` runs over every row.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from router.engines import generic, sglang, vllm
from router.engines.facts import (
    AnnouncedEvents,
    EngineGauges,
    ModelList,
    ProbeFailed,
    WorkerFacts,
    fetch_models,
)
from router.engines.gauges import GaugeNames, read_gauges
from router.engines.http import WorkerHttp
from router.engines.metrics_text import merge_metrics
from router.engines.sessions import WorkerSessions
from router.wire.endpoints import Protocol
from router.wire.openai import Slices

__all__ = [
    "ENGINES",
    "AnnouncedEvents",
    "Engine",
    "EngineGauges",
    "ProbeFailed",
    "WorkerFacts",
    "WorkerSessions",
    "merge_metrics",
    "parse_rank_gauges",
    "probe",
]


@dataclass(frozen=True, slots=True)
class Engine:
    """One row: how an engine is recognised and asked."""

    probe: Callable[[WorkerHttp, ModelList], Awaitable[WorkerFacts | None]]
    """Facts, or None when the server is not of this kind."""
    tokenize_request: Callable[[Protocol, Slices, str], bytes | None]
    """The body of a POST to /tokenize, or None where the engine cannot be asked for such a prompt."""
    gauges: GaugeNames


ENGINES: Mapping[str, Engine] = {
    "vllm": Engine(vllm.probe, vllm.tokenize_request, vllm.GAUGES),
    "sglang": Engine(sglang.probe, sglang.tokenize_request, sglang.GAUGES),
    "generic": Engine(generic.probe, generic.tokenize_request, generic.GAUGES),
}
"""Tried in this order: the last one takes what the others do not know."""


async def probe(http: WorkerHttp) -> WorkerFacts:
    """Ask a worker what it is. Raises ProbeFailed when it is down, not ready, or answers rubbish."""
    models = await fetch_models(http)
    for engine in ENGINES.values():
        if (facts := await engine.probe(http, models)) is not None:
            return facts
    raise ProbeFailed("it answers neither /v1/models nor /health")


def parse_rank_gauges(text: bytes) -> Mapping[str, EngineGauges]:
    """The load gauges in a worker's metrics text, found by byte search, by the rank's label ("" where there
    is none); empty for no known engine."""
    for engine in ENGINES.values():
        if gauges := read_gauges(text, engine.gauges):
            return gauges
    return {}
