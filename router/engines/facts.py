"""What a probe finds out about a worker, free of any engine's spelling."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from policies.types import Role, ServedModel
from router.engines.http import CallFailed, WorkerHttp
from router.engines.limits import MODELS_BYTES


class ProbeFailed(Exception):
    """The worker cannot be served now; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedEvents:
    """Where an engine itself says that it publishes KV events: rank r is `r` ports further."""

    host: str
    """"" is the host of its URL: it listens on all of its addresses."""
    port: int
    replay_port: int | None = None
    topic: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts:
    """One worker as its own API describes it. What it did not tell is None, and named in `missing`."""

    engine: str
    """A row of `ENGINES`."""
    version: str = ""
    models: tuple[ServedModel, ...] = ()
    model_entries: Sequence[Mapping[str, Any]] = ()
    """Its entries of `/v1/models`, as they came."""
    block_tokens: int | None = None
    """Tokens of a KV block."""
    num_blocks: int | None = None
    """KV blocks of one rank."""
    num_ranks: int = 1
    """Data-parallel ranks behind the URL, which count from 0."""
    rank_problem: str = ""
    """Why a request can't be told which of them is to serve it; "" when it can."""
    announced_events: AnnouncedEvents | None = None
    offers_tokenize: bool = False
    start_time: float | None = None
    """Start of its process in Unix seconds; a change means a restart."""
    role: Role | None = None
    """The part of requests that it does, where its engine tells; what is configured comes second then."""
    bootstrap_port: int | None = None
    """Of its bootstrap server, in prefill workers that tell."""
    missing: tuple[str, ...] = ()
    """What could not be had, in words."""


@dataclass(frozen=True, slots=True)
class EngineGauges:
    """An engine's own view of its load, of one rank or over all; None where its metrics do not say."""

    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    """Share of the KV cache that running requests occupy, 0 to 1."""

    @classmethod
    def over(cls, ranks: Iterable[EngineGauges]) -> EngineGauges:
        """Requests summed, the highest KV usage of any."""
        ranks = list(ranks)
        running = [each.running for each in ranks if each.running is not None]
        waiting = [each.waiting for each in ranks if each.waiting is not None]
        kv_usage = [each.kv_usage for each in ranks if each.kv_usage is not None]
        return cls(
            running=sum(running) if running else None,
            waiting=sum(waiting) if waiting else None,
            kv_usage=max(kv_usage, default=None),
        )


@dataclass(frozen=True, slots=True)
class ModelList:
    """An answer of `/v1/models`."""

    entries: Sequence[Mapping[str, Any]] = field(default=())

    @property
    def models(self) -> tuple[ServedModel, ...]:
        return tuple(ServedModel(entry["id"], _parent_of(entry)) for entry in self.entries)

    @property
    def base_model(self) -> str:
        return next((model.name for model in self.models if model.parent is None), "")

    def is_owned_by(self, owner: str) -> bool:
        """Engines sign the entries of the models that they serve."""
        return any(entry.get("owned_by") == owner for entry in self.entries)


def _parent_of(entry: Mapping[str, Any]) -> str | None:
    parent = entry.get("parent")
    return parent if isinstance(parent, str) and parent else None


class _ModelsAnswer(msgspec.Struct):
    data: list[dict[str, Any]]


async def fetch_models(http: WorkerHttp) -> ModelList:
    """The models that a worker serves; none when it has no such list. Raises ProbeFailed."""
    try:
        answer = await http.get("/v1/models", MODELS_BYTES)
    except CallFailed as error:
        raise ProbeFailed(str(error)) from None
    if answer.status in (401, 403):
        raise ProbeFailed(f"/v1/models answered {answer.status}: the worker wants an API key")
    if answer.status >= 500:
        raise ProbeFailed(f"/v1/models answered {answer.status}: the worker is not ready")
    if not answer.is_success:
        return ModelList()
    try:
        entries = msgspec.json.decode(answer.body, type=_ModelsAnswer).data
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProbeFailed(f"/v1/models answered rubbish: {error}") from None
    return ModelList([entry for entry in entries if isinstance(entry.get("id"), str) and entry["id"]])
