"""One worker as a row of `/workers`: JSON values, with the same words as metrics and logs."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from indexer.feed import KvFeed
from indexer.parity import Check, ParityState
from router.core.routing import RoutingCore
from router.core.workers import WorkerView
from router.fleet.member import Member
from router.fleet.ranks import Rank
from router.fleet.watch import WorkerWatch


def member_rows(member: Member, core: RoutingCore) -> list[dict[str, Any]]:
    """A row for each rank; one alone for a member that has not answered yet."""
    if not member.ranks:
        return [_row(member, None, None, core)]
    return [_row(member, rank, core.worker(rank.worker.id), core) for rank in member.ranks]


def _row(member: Member, rank: Rank | None, view: WorkerView | None, core: RoutingCore) -> dict[str, Any]:
    """`rank` and `view` are None while the worker has not answered yet."""
    watch = member.watch
    number = rank.worker.dp_rank if rank is not None else None
    endpoints = rank.endpoints if rank is not None else None
    return {
        "id": rank.worker.id if rank is not None else member.id,
        "server": member.id,
        "dp_rank": number,
        "url": watch.spec.url,
        "role": (rank.worker.role if rank is not None else watch.spec.role).value,
        "hand_over": _hand_over(rank),
        "state": view.state if view is not None else "pending",
        "error": watch.error or None,
        "trust": _trust(rank, view),
        "parity": _parity(core.parity(rank.worker.id) if rank is not None else None),
        "load": _load(view),
        "engine_gauges": asdict(watch.gauges_of(number)),
        "index": _index(view),
        "engine": _engine(watch),
        "kv_events": endpoints.events if endpoints is not None else watch.spec.kv_events,
        "kv_replay": endpoints.replay if endpoints is not None else watch.spec.kv_replay,
        "events": _events(view, core.feed),
    }


def _hand_over(rank: Rank | None) -> dict[str, Any] | None:
    """By which protocol its prompts reach another worker, or another's reach it."""
    if rank is None or (transfer := rank.worker.transfer) is None:
        return None
    alone = rank.worker.prefills_alone
    return {
        "protocol": transfer.protocol,
        "host": transfer.host,
        "port": transfer.port,
        "prefills_alone": alone,
    }


def _events(view: WorkerView | None, feed: KvFeed) -> dict[str, Any] | None:
    """What its publisher sent; None for a worker from which no events are expected."""
    if view is None or not view.worker.publishes_events:
        return None
    stats = feed.stats(view.slot)
    # Not `asdict`, which makes tuples of a Counter's keys: JSON has none.
    values = {each.name: getattr(stats, each.name) for each in fields(stats)}
    return values | {"ignored": dict(stats.ignored)}


def _trust(rank: Rank | None, view: WorkerView | None) -> dict[str, str] | None:
    if view is None or rank is None:
        return None
    return {"level": view.trust.level.value, "reason": rank.why_predicted or view.trust.reason}


def _parity(state: ParityState | None) -> dict[str, Any] | None:
    """What the checks of its tokens and blocks have found, and the likely cause of what differs."""
    if state is None:
        return None
    checks = [
        {
            "check": check.value,
            "model": subject.model,
            "salted": subject.is_salted,
            "verdict": finding.evidence.verdict.value,
            "agreed": finding.evidence.num_agreed,
            "differed": finding.evidence.num_differed,
            "skipped": finding.num_skipped,
            "note": finding.note or None,
        }
        for check in Check
        for subject, finding in state.findings(check).items()
    ]
    return {"warning": state.warning or None, "checks": checks}


def _load(view: WorkerView | None) -> dict[str, float] | None:
    """Our own bookings; what the engine says of itself stands in `engine_gauges`."""
    if view is None:
        return None
    return {
        "num_active_requests": view.num_active_requests,
        "active_prefill_tokens": view.active_prefill_tokens,
        "active_decode_blocks": view.active_decode_blocks,
        "active_output_tokens": view.active_output_tokens,
    }


def _index(view: WorkerView | None) -> dict[str, int] | None:
    if view is None:
        return None
    return {
        "block_tokens": view.space.block_tokens,
        "lookahead_tokens": view.space.lookahead_tokens,
        "num_blocks": view.num_index_blocks,
        "num_predicted_blocks": view.num_predicted_blocks,
    }


def _engine(watch: WorkerWatch) -> dict[str, Any] | None:
    facts = watch.facts
    if facts is None:
        return None
    return {
        "name": facts.engine,
        "version": facts.version,
        "models": [model.name for model in facts.models],
        "block_tokens": facts.block_tokens,
        "num_blocks": facts.num_blocks,
        "num_ranks": facts.num_ranks,
        "not_told": list(facts.missing),
    }
