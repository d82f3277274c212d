"""A decision in JSON and in one sentence."""

from __future__ import annotations

import math
from typing import Any

from indexer.trust import TrustLevel
from policies.types import Decision, EngineTimes, Verdict

_COLUMNS = (
    "device_overlap",
    "host_overlap",
    "disk_overlap",
    "active_prefill_blocks",
    "potential_decode_blocks",
    "num_active_requests",
    "num_held_blocks",
)
"""Of Candidates; zeros where the policy did not ask for the column."""


def explain(decision: Decision, *, now: float) -> dict[str, Any]:
    """The whole record. `now`: monotonic seconds. Blocks are reference blocks of `block_tokens` tokens; costs
    are null where there are none."""
    return {
        "text": explain_in_words(decision),
        "request_id": decision.request_id,
        "client_request_id": decision.client_request_id,
        "attempt": decision.attempt,
        "worker": decision.worker.id,
        "policy": decision.policy,
        "reason": decision.reason,
        "trust": decision.trust,
        "num_prompt_tokens": decision.num_prompt_tokens,
        "expected_cached_tokens": decision.expected_cached_tokens,
        "block_tokens": decision.candidates.block_tokens,
        "prompt_blocks": decision.candidates.prompt_blocks,
        "seconds_ago": round(now - decision.now, 3),
        "candidates": [_row(decision, row) for row in range(len(decision.candidates))],
        "details": dict(decision.details),
        "verdict": _verdict(decision.verdict) if decision.verdict is not None else None,
        "prefill": explain(decision.prefill, now=now) if decision.prefill is not None else None,
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    """Where the prompt is computed, and why; times in milliseconds."""
    return {
        "prefill": "remote" if verdict.is_remote else "local",
        "reason": verdict.reason,
        "mode": verdict.mode,
        "effective_tokens": verdict.effective_tokens,
        "times_ms": dict(verdict.times_ms),
    }


def explain_in_words(decision: Decision) -> str:
    """One sentence: where it went, against what, and what was expected to be cached there."""
    parts = [
        f"{decision.worker.id} was chosen of {_count(len(decision.candidates), 'candidate')} "
        f"by {decision.policy} ({decision.reason})",
        *_cost_words(decision),
    ]
    if decision.num_prompt_tokens:
        parts.append(
            f"{decision.expected_cached_tokens} of {decision.num_prompt_tokens} prompt tokens were expected "
            f"in its cache ({_trust_words(decision)})"
        )
    parts += _prefill_words(decision)
    if decision.attempt:
        parts.append(f"{_count(decision.attempt, 'attempt')} had failed before")
    return "; ".join(parts) + "."


def _prefill_words(decision: Decision) -> list[str]:
    verdict = decision.verdict
    if verdict is None:
        return []
    place = f"by {decision.prefill.worker.id}" if decision.prefill is not None else "there too"
    return [
        f"the prompt is computed {place} ({verdict.reason}: {verdict.effective_tokens:g} of "
        f"{decision.num_prompt_tokens} tokens are not held there, mode {verdict.mode})"
    ]


def _trust_words(decision: Decision) -> str:
    """With the reason where the index was in doubt."""
    reason = decision.details.get("trust_reason")
    in_doubt = decision.trust in (TrustLevel.DEGRADED, TrustLevel.RECOVERING)
    return f"{decision.trust}: {reason}" if reason and in_doubt else decision.trust


def _row(decision: Decision, row: int) -> dict[str, Any]:
    candidates, costs = decision.candidates, decision.choice.costs
    values = {column: getattr(candidates, column)[row] for column in _COLUMNS}
    return {
        "worker": candidates.workers[row].id,
        "chosen": row == decision.choice.row,
        "cost": costs[row] if costs else None,
        **values,
        "served_last": row == candidates.served_last_row,
        "terms": dict(zip(decision.choice.term_names, decision.choice.terms[row], strict=True))
        if decision.choice.terms
        else None,
        "engine": _engine(candidates.times, row) if candidates.times else None,
    }


def _engine(times: EngineTimes, row: int) -> dict[str, Any]:
    """What the terms were made from. Milliseconds; room that is not known is null."""
    free_tokens = times.free_tokens[row]
    return {
        "prefill_ms": times.prefill[row]._asdict(),
        "step_ms": times.step[row]._asdict(),
        "num_decoding": times.num_decoding[row],
        "decoding_tokens": times.decoding_tokens[row],
        "resident_tokens": times.resident_tokens[row],
        "free_tokens": free_tokens if math.isfinite(free_tokens) else None,
        "mean_output_tokens": times.mean_output_tokens,
        "arrivals_per_second": times.arrivals_per_ms * 1000,
    }


def _cost_words(decision: Decision) -> list[str]:
    costs, chosen = decision.choice.costs, decision.choice.row
    others = [row for row in range(len(costs)) if row != chosen]
    if not others:
        return []
    best = min(others, key=lambda row: costs[row])
    other = decision.candidates.workers[best].id
    unit = " ms" if decision.choice.terms else ""
    return [f"its cost is {costs[chosen]:.1f}{unit}, the best other is {other} with {costs[best]:.1f}{unit}"]


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
