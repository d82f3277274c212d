"""The few gauges of an engine's metrics that show its load, whoever spells them."""

from __future__ import annotations

from dataclasses import dataclass

from router.engines.facts import EngineGauges
from router.engines.metrics_text import find_samples


@dataclass(frozen=True, slots=True)
class GaugeNames:
    """One engine's names of the gauges; of several spellings the first that is there counts."""

    running: tuple[bytes, ...]
    waiting: tuple[bytes, ...]
    kv_usage: tuple[bytes, ...]
    rank_label: str
    """Tells data-parallel ranks apart. Series that differ in other labels repeat one rank's value."""


def read_gauges(text: bytes, names: GaugeNames) -> dict[str, EngineGauges]:
    """The gauges of each rank in a metrics text, by the rank's label; "" for series without one."""
    running = _by_rank(text, names.running, names.rank_label)
    waiting = _by_rank(text, names.waiting, names.rank_label)
    kv_usage = _by_rank(text, names.kv_usage, names.rank_label)
    return {
        rank: EngineGauges(_whole(running.get(rank)), _whole(waiting.get(rank)), kv_usage.get(rank))
        for rank in sorted(running.keys() | waiting.keys() | kv_usage.keys())
    }


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _by_rank(text: bytes, spellings: tuple[bytes, ...], rank_label: str) -> dict[str, float]:
    for name in spellings:
        values: dict[str, float] = {}
        for labels, value in find_samples(text, name):
            rank = labels.get(rank_label, "")
            values[rank] = max(value, values.get(rank, value))
        if values:
            return values
    return {}
