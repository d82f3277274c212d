"""Counters and histograms as plain dicts and lists: what the hot path touches.

prometheus-client's own children lock, and search their buckets one by one; here one observation is a dict
lookup, a bisection and two additions (all callers live on one event loop). `export` turns them into text.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from router.metrics.limits import SERIES_MAX
from router.metrics.table import Metric

Labels = tuple[str, ...]

Cells = list[float]
"""Of a histogram: a count for each bucket, one for what is beyond them, and last the sum."""

Reading = tuple[Metric, Sequence[tuple[Labels, float]] | Sequence[tuple[Labels, Cells]]]
"""A metric with the values of all its label sets, as they were at one moment."""


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

    def read(self) -> Reading:
        return self.metric, list(self.values.items())


class Histogram:
    """Cells for each label set."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.values: dict[Labels, Cells] = {}

    def observe(self, labels: Labels, value: float) -> None:
        cells = self.values.get(labels)
        if cells is None:
            cells = self._new_cells(labels)
        cells[bisect_left(self.metric.buckets, value)] += 1
        cells[-1] += value

    def observer(self, labels: Labels) -> Callable[[float], None]:
        """`observe` for one label set, looked up once: for what happens with every token."""
        buckets, cells = self.metric.buckets, self.values.get(labels) or self._new_cells(labels)

        def observe(value: float) -> None:
            cells[bisect_left(buckets, value)] += 1
            cells[-1] += value

        return observe

    def keep(self, wanted: Callable[[Labels], bool]) -> None:
        self.values = {labels: cells for labels, cells in self.values.items() if wanted(labels)}

    def read(self) -> Reading:
        return self.metric, list(self.values.items())

    def _new_cells(self, labels: Labels) -> Cells:
        labels = _bounded(labels, len(self.values))
        return self.values.setdefault(labels, [0] * (len(self.metric.buckets) + 2))


def _bounded(labels: Labels, num_series: int) -> Labels:
    return labels if num_series < SERIES_MAX else ("other",) * len(labels)
