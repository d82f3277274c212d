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


def read_gauges(text: bytes, names: GaugeNames) -> EngineGauges:
    """The gauges in a metrics text: requests summed over the ranks, the highest KV usage of any."""
    running = _by_rank(text, names.running, names.rank_label)
    waiting = _by_rank(text, names.waiting, names.rank_label)
    kv_usage = _by_rank(text, names.kv_usage, names.rank_label)
    return EngineGauges(
        running=int(sum(running.values())) if running else None,
        waiting=int(sum(waiting.values())) if waiting else None,
        kv_usage=max(kv_usage.values()) if kv_usage else None,
    )


def _by_rank(text: bytes, spellings: tuple[bytes, ...], rank_label: str) -> dict[str, float]:
    for name in spellings:
        values: dict[str, float] = {}
        for labels, value in find_samples(text, name):
            rank = labels.get(rank_label, "")
            values[rank] = max(value, values.get(rank, value))
        if values:
            return values
    return {}
