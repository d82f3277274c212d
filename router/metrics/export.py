"""Readings as prometheus-client's families, and as text in slices that an event loop can bear."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.utils import floatToGoString

from router.metrics.limits import SLICE_SAMPLES
from router.metrics.series import Cells, Labels, Reading
from router.metrics.table import COUNTER, HISTOGRAM, Metric


def family_of(reading: Reading) -> Family:
    metric, series = reading
    return _histogram(metric, series) if metric.type == HISTOGRAM else _numbers(metric, series)


def text_slices(reading: Reading) -> Iterator[bytes]:
    """The text of one metric piece by piece; joined, it is one block under one heading."""
    metric, series = reading
    step = max(1, SLICE_SAMPLES // (len(metric.buckets) + 1))
    yield _text(family_of((metric, series[:step])))
    for start in range(step, len(series), step):
        yield _without_heading(_text(family_of((metric, series[start : start + step]))))


def _numbers(metric: Metric, series: Sequence[tuple[Labels, Any]]) -> Family:
    kind = CounterMetricFamily if metric.type == COUNTER else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=metric.labels)
    for labels, value in series:
        family.add_metric(labels, value)
    return family


def _histogram(metric: Metric, series: Sequence[tuple[Labels, Any]]) -> Family:
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    bounds = [*map(floatToGoString, metric.buckets), "+Inf"]
    for labels, cells in series:
        family.add_metric(labels, _cumulated(bounds, cells), sum_value=cells[-1])
    return family


def _cumulated(bounds: Sequence[str], cells: Cells) -> list[tuple[str, float]]:
    counts = accumulate(cells[:-1])
    return list(zip(bounds, counts, strict=True))


def _text(family: Family) -> bytes:
    return generate_latest(_Single(family))


def _without_heading(text: bytes) -> bytes:
    """Without the lines HELP and TYPE, which stand first."""
    return text.split(b"\n", 2)[2]


class _Single(CollectorRegistry):
    """A registry of one family, which is what prometheus-client can render."""

    def __init__(self, family: Family) -> None:
        super().__init__()
        self._family = family

    def collect(self) -> Iterator[Family]:
        yield self._family
