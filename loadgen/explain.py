"""One decision of the gateway in one line, from what its admin port says under `/explain`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Explained = Mapping[str, Any]


def most_telling(decisions: Sequence[Explained]) -> Explained | None:
    """The decision in which costs and cache spoke most: the longest prefix held by the chosen worker alone.

    None when no decision had costs.
    """
    with_costs = [decision for decision in decisions if decision["candidates"][0]["cost"] is not None]
    return max(with_costs, key=_advantage, default=None)


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


def _advantage(decision: Explained) -> float:
    others = [row["device_overlap"] for row in decision["candidates"] if not row["chosen"]]
    best: float = _chosen(decision)["device_overlap"] - max(others, default=0.0)
    return best
