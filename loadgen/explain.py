"""One decision of the gateway in one line, from what its admin port says under `/explain`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Explained = Mapping[str, Any]


def most_telling(decisions: Sequence[Explained]) -> Explained | None:
    """The decision in which the cache weighed most: blocks that only the chosen worker holds, in the scale of
    what the others would have cost.

    None when no decision had costs.
    """
    with_costs = [decision for decision in decisions if decision["candidates"][0]["cost"] is not None]
    return max(with_costs, key=_weight_of_cache, default=None)


def explain_line(policy: str, decision: Explained) -> str:
    """Such as: kv: request 123 -> w2: holds 14 of 20 blocks; cost 12.0 against 26.0, 27.5, 31.0"""
    chosen = _chosen(decision)
    others = sorted(row["cost"] for row in decision["candidates"] if not row["chosen"])
    against = f" against {', '.join(f'{cost:.1f}' for cost in others)}" if others else ""
    name = decision["client_request_id"] or decision["request_id"]
    return (
        f"{policy}: request {name} -> {decision['worker']}: holds {chosen['device_overlap']:.0f} of "
        f"{decision['prompt_blocks']:.0f} blocks; cost {chosen['cost']:.1f}{against}"
    )


def _chosen(decision: Explained) -> Mapping[str, Any]:
    row: Mapping[str, Any] = next(row for row in decision["candidates"] if row["chosen"])
    return row


def _weight_of_cache(decision: Explained) -> float:
    others = [row for row in decision["candidates"] if not row["chosen"]]
    if not others:
        return 0.0
    elsewhere = max(row["device_overlap"] for row in others)
    cost_elsewhere = min(row["cost"] for row in others)
    weight: float = (_chosen(decision)["device_overlap"] - elsewhere) / max(1.0, cost_elsewhere)
    return weight
