"""The routable parts of a worker's URL: one for each data-parallel rank, with the endpoints of its KV events.

From what was configured and what a probe found out. A URL with one rank is one worker under its own id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from indexer.adapters import ADAPTERS
from policies.types import Role, Transfer, Worker
from router.discovery import TemplateError, WorkerSpec, at_rank
from router.engines import AnnouncedEvents, WorkerFacts
from router.worker_address import WorkerAddress


@dataclass(frozen=True, slots=True)
class EventEndpoints:
    """Where the KV events of one rank come from. `topic` is the prefix to filter by, None the fleet's."""

    events: str
    replay: str | None = None
    topic: str | None = None


@dataclass(frozen=True, slots=True)
class Rank:
    """One worker as routing knows it. `why_predicted`: why its index can't be exact, "" when it will be."""

    worker: Worker
    endpoints: EventEndpoints | None
    why_predicted: str


def ranks_of(spec: WorkerSpec, facts: WorkerFacts) -> tuple[Rank, ...]:
    """The ranks that requests can be sent to: one that stands for all where they can't be told apart."""
    if facts.num_ranks == 1 or facts.rank_problem:
        return (_rank(spec, facts, None),)
    ranks = tuple(_rank(spec, facts, number) for number in range(facts.num_ranks))
    if problem := next((rank.why_predicted for rank in ranks if rank.endpoints is None), ""):
        return tuple(_predicted(rank, problem) for rank in ranks)
    return ranks


def _rank(spec: WorkerSpec, facts: WorkerFacts, number: int | None) -> Rank:
    endpoints, problem = _endpoints(spec, facts, number or 0)
    problem = problem or _why_predicted(facts)
    role = facts.role or spec.role
    worker = Worker(
        id=spec.id if number is None else f"{spec.id}@{number}",
        url=spec.url,
        models=facts.models,
        engine=facts.engine,
        version=facts.version,
        role=role,
        transfer=_transfer(spec, facts, role, number),
        prefills_alone=facts.engine != "sglang" or role is not Role.DECODE,
        dp_rank=number,
        block_tokens=facts.block_tokens,
        num_blocks=facts.num_blocks,
        publishes_events=not problem,
        replays_events=endpoints is not None and endpoints.replay is not None,
    )
    return Rank(worker, endpoints, problem)


def _transfer(spec: WorkerSpec, facts: WorkerFacts, role: Role, number: int | None) -> Transfer | None:
    """SGLang has one protocol; which connector a vLLM server has is configured, since it does not tell. Ranks
    that can't be told apart are one: the servers agree on one of them by themselves."""
    if role is Role.BOTH or facts.engine not in ("vllm", "sglang"):
        return None
    host, _, port = (spec.kv_address or "").rpartition(":")
    return Transfer(
        protocol="sglang" if facts.engine == "sglang" else spec.connector,
        host=host,
        port=int(port) if port else spec.bootstrap_port or facts.bootstrap_port,
        num_ranks=1 if number is None else facts.num_ranks,
    )


def _why_predicted(facts: WorkerFacts) -> str:
    if facts.engine not in ADAPTERS:
        return f"the KV events of this engine ({facts.engine}) cannot be read"
    if facts.num_ranks > 1 and facts.rank_problem:
        return f"{facts.num_ranks} data-parallel ranks behind one URL, and {facts.rank_problem}"
    return ""


def _endpoints(spec: WorkerSpec, facts: WorkerFacts, number: int) -> tuple[EventEndpoints | None, str]:
    """Those that are configured, else those that the engine announces; or why there are none."""
    try:
        if spec.kv_events is not None:
            replay = None if spec.kv_replay is None else at_rank(spec.kv_replay, number)
            return EventEndpoints(events=at_rank(spec.kv_events, number), replay=replay), ""
        if facts.announced_events is not None:
            return _announced(spec, facts.announced_events, number), ""
    except TemplateError as error:
        return None, str(error)
    return None, "no KV event endpoint is configured"


def _announced(spec: WorkerSpec, events: AnnouncedEvents, number: int) -> EventEndpoints:
    place = f"tcp://{events.host or WorkerAddress.parse(spec.url).bracketed_host}"
    replay = None if events.replay_port is None else at_rank(f"{place}:{events.replay_port}", number)
    return EventEndpoints(at_rank(f"{place}:{events.port}", number), replay, topic=events.topic)


def without_shared_endpoints(ranks: Sequence[Rank]) -> list[Rank]:
    """Publishers are told apart by their endpoints. Who comes to one that another server's worker has already
    is predicted; of the ranks of one server that would share one, nobody knows whose blocks it tells of, so
    neither is believed."""
    owners: dict[str, Rank] = {}
    for rank in ranks:
        for endpoint in _sockets(rank):
            owners.setdefault(endpoint, rank)
    users = Counter((rank.worker.url, endpoint) for rank in ranks for endpoint in _sockets(rank))
    return [_unless_shared(rank, owners, users) for rank in ranks]


def _unless_shared(rank: Rank, owners: Mapping[str, Rank], users: Mapping[tuple[str, str], int]) -> Rank:
    if rank.why_predicted:
        return rank
    for endpoint in _sockets(rank):
        owner = owners[endpoint].worker
        if users[rank.worker.url, endpoint] > 1 or owner.url != rank.worker.url:
            return _predicted(rank, _why_shared(endpoint, owner, rank.worker))
    return rank


def _why_shared(endpoint: str, owner: Worker, worker: Worker) -> str:
    if owner.dp_rank is None and worker.dp_rank is None and owner.id != worker.id:
        return f"{endpoint} is worker {owner.id}'s already: give each worker an endpoint of its own"
    if owner.dp_rank is None and worker.dp_rank is None:
        return f"{endpoint} is given for events and for replays: they are two sockets"
    return f"{endpoint} is meant for several sockets: keep their ports further apart than there are ranks"


def _sockets(rank: Rank) -> list[str]:
    endpoints = rank.endpoints
    return [] if endpoints is None else [each for each in (endpoints.events, endpoints.replay) if each]


def _predicted(rank: Rank, reason: str) -> Rank:
    return Rank(replace(rank.worker, publishes_events=False), rank.endpoints, reason)
