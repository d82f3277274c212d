"""Counters and histograms as plain dicts and lists: what the hot path touches.

prometheus-client's own children lock, and search their buckets one by one; here one observation is a dict
lookup, a bisection and two additions (all callers live on one event loop). Exported through `families`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.utils import floatToGoString

from router.metrics.table import COUNTER, GAUGE, Metric

Labels = tuple[str, ...]

MAX_SERIES = 20_000
"""Label sets of one metric. Past it, new ones are counted under "other": a label that varies too much must
not eat the memory of the gateway. 500 workers x 10 models x 4 statuses fit."""


class Counter:
    """A number for each label set."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.values: dict[Labels, float] = {}

    def add(self, labels: Labels, amount: float = 1) -> None:
        values = self.values
        if labels in values:
            values[labels] += amount
        else:
            labels = _bounded(labels, len(values))
            values[labels] = values.get(labels, 0) + amount

    def keep(self, wanted: Callable[[Labels], bool]) -> None:
        self.values = {labels: value for labels, value in self.values.items() if wanted(labels)}

    def family(self) -> Family:
        return number_family(self.metric, list(self.values.items()))


class Histogram:
    """For each label set a list of counts, one per bucket and one beyond them, and last the sum."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.values: dict[Labels, list[float]] = {}

    def observe(self, labels: Labels, value: float) -> None:
        cells = self.values.get(labels)
        if cells is None:
            cells = self._new_series(labels)
        cells[bisect_left(self.metric.buckets, value)] += 1
        cells[-1] += value

    def keep(self, wanted: Callable[[Labels], bool]) -> None:
        self.values = {labels: cells for labels, cells in self.values.items() if wanted(labels)}

    def family(self) -> Family:
        family = HistogramMetricFamily(self.metric.name, self.metric.help, labels=self.metric.labels)
        bounds = [*map(floatToGoString, self.metric.buckets), "+Inf"]
        for labels, cells in self.values.items():
            family.add_metric(labels, _cumulated(bounds, cells), sum_value=cells[-1])
        return family

    def _new_series(self, labels: Labels) -> list[float]:
        labels = _bounded(labels, len(self.values))
        return self.values.setdefault(labels, [0] * (len(self.metric.buckets) + 2))


def number_family(metric: Metric, values: Sequence[tuple[Labels, float]]) -> Family:
    """A counter's or gauge's values, ready for export."""
    assert metric.type in (COUNTER, GAUGE)
    kind = CounterMetricFamily if metric.type == COUNTER else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=metric.labels)
    for labels, value in values:
        family.add_metric(labels, value)
    return family


def _cumulated(bounds: Sequence[str], cells: Sequence[float]) -> list[tuple[str, float]]:
    total = 0.0
    buckets = []
    for bound, count in zip(bounds, cells, strict=False):
        total += count
        buckets.append((bound, total))
    return buckets


def _bounded(labels: Labels, num_series: int) -> Labels:
    return labels if num_series < MAX_SERIES else ("other",) * len(labels)
