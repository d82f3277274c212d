"""Any other server with an OpenAI-compatible API. It is served in predictive mode."""

from __future__ import annotations

from router.engines.facts import ModelList, WorkerFacts
from router.engines.gauges import GaugeNames
from router.engines.http import CallFailed, WorkerHttp
from router.engines.limits import SMALL_BYTES
from router.wire.endpoints import Protocol
from router.wire.openai import Slices

GAUGES = GaugeNames(running=(), waiting=(), kv_usage=(), rank_label="")


async def probe(http: WorkerHttp, models: ModelList) -> WorkerFacts | None:
    """Its models, or just that it is healthy; None when it does not answer as a server of models would."""
    if not models.models and not await _is_healthy(http):
        return None
    missing = ["its engine", "block size", "KV capacity", "tokenization"]
    return WorkerFacts(
        engine="generic",
        models=models.models,
        model_entries=models.entries,
        missing=tuple(missing if models.models else ["a list of models", *missing]),
    )


async def _is_healthy(http: WorkerHttp) -> bool:
    try:
        return (await http.get("/health", SMALL_BYTES)).is_success
    except CallFailed:
        return False


def tokenize_request(protocol: Protocol, prompt: Slices, model: str) -> bytes | None:
    """None: there is no common way to ask for tokens."""
    return None
