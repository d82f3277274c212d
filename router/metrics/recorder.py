"""The metrics that requests leave behind, one cheap call for each thing that happened.

An attempt that goes out is counted by `request_started`, a request by `request_ended`, once each. What is in
flight is not kept from these two calls: it is read from the core's bookings, which can't drift.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from policies.types import Verdict, WorkerId
from router.core.routing import RoutingCore
from router.metrics import table
from router.metrics.export import family_of, text_slices
from router.metrics.series import Counter, Histogram, Reading
from router.metrics.workers import worker_readings

OTHER = "other"
"""The model label of names that no worker serves: clients choose them, and must not make series."""


class Metrics(Collector):
    """One registry of its own; `registry` is what `/metrics` shows."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._counted: list[Counter | Histogram] = []
        self._requests = self._counter(table.REQUESTS)
        self._dispatches = self._counter(table.DISPATCHES)
        self._retries = self._counter(table.RETRIES)
        self._errors = self._counter(table.ERRORS)
        self._client_gone = self._counter(table.CLIENT_GONE)
        self._stream_errors = self._counter(table.STREAM_ERRORS)
        self._token_fallbacks = self._counter(table.TOKEN_FALLBACKS)
        self._expected_cached = self._counter(table.EXPECTED_CACHED)
        self._reported_cached = self._counter(table.REPORTED_CACHED)
        self._overlap_lost = self._counter(table.OVERLAP_LOST)
        self._disagg_decisions = self._counter(table.DISAGG_DECISIONS)
        self._hand_over_failures = self._counter(table.HAND_OVER_FAILURES)
        self._prefill_leg = self._histogram(table.PREFILL_LEG)
        self._kv_transfer = self._histogram(table.KV_TRANSFER)
        self._ttft = self._histogram(table.TTFT)
        self._itl = self._histogram(table.ITL)
        self._duration = self._histogram(table.DURATION)
        self._decision = self._histogram(table.DECISION)
        self._core: RoutingCore | None = None
        self._member_ids: Callable[[], Iterable[WorkerId]] = tuple
        self._model_labels: set[str] = set()
        self.registry.register(self)

    def request_started(self, worker_id: str, model: str) -> None:
        """An attempt goes out to that worker."""
        self._dispatches.add((worker_id, self._model_label(model)))

    def request_ended(
        self,
        worker_id: str,
        policy: str,
        model: str,
        endpoint: str,
        status: int,
        outcome: str,
        duration: float,
    ) -> None:
        """A request is over, however; `worker_id` and `policy` are "" when it met no worker. Seconds."""
        self._requests.add((worker_id, policy, self._model_label(model), endpoint, str(status), outcome))
        self._duration.observe((worker_id, policy), duration)

    def ttft(self, worker_id: str, policy: str, seconds: float) -> None:
        self._ttft.observe((worker_id, policy), seconds)

    def itl(self, worker_id: str, policy: str) -> Callable[[float], None]:
        """What one stream calls with the seconds between its tokens."""
        return self._itl.observer((worker_id, policy))

    def retry(self, worker_id: str, reason: str) -> None:
        """The attempt on that worker failed and another worker is tried."""
        self._retries.add((worker_id, reason))

    def error(self, kind: str) -> None:
        """The gateway answered with an error of its own; `kind` is the error's code."""
        self._errors.add((kind,))

    def stage(self, stage: str, seconds: float) -> None:
        """`stage` is parse, tokens (block hashes among it) or route."""
        self._decision.observe((stage,), seconds)

    def cached(self, worker_id: str, expected: int, reported: int) -> None:
        """A worker told how many prompt tokens it had cached, where the index had expected `expected`."""
        self._expected_cached.add((worker_id,), expected)
        self._reported_cached.add((worker_id,), reported)

    def overlap_lost(self, worker_id: str, tokens: int) -> None:
        """That worker was chosen although another candidate had `tokens` more of the prompt cached."""
        self._overlap_lost.add((worker_id,), tokens)

    def disagg_decided(self, verdict: Verdict) -> None:
        self._disagg_decisions.add(("remote" if verdict.is_remote else "local", verdict.reason))

    def hand_over_failed(self, worker_id: str, leg: str, code: str) -> None:
        """`leg` is prefill or decode; `code` the error's."""
        self._hand_over_failures.add((worker_id, leg, code))

    def prefill_leg(self, worker_id: str, seconds: float) -> None:
        self._prefill_leg.observe((worker_id,), seconds)

    def kv_transfer(self, worker_id: str, seconds: float) -> None:
        """Seconds from the decode leg's dispatch to its first token."""
        self._kv_transfer.observe((worker_id,), seconds)

    def token_fallback(self, reason: str) -> None:
        self._token_fallbacks.add((reason,))

    def client_gone(self, phase: str) -> None:
        self._client_gone.add((phase,))

    def stream_error_event(self, worker_id: str, placed: bool) -> None:
        self._stream_errors.add((worker_id, "true" if placed else "false"))

    def watch(self, core: RoutingCore, member_ids: Callable[[], Iterable[WorkerId]] = tuple) -> None:
        """Export what the core knows of each worker, and count nothing under names that it doesn't know.
        `member_ids` are those of the whole fleet; one that the core has not met yet is not up.
        """
        self._core = core
        self._member_ids = member_ids

    async def exposition(self) -> bytes:
        """What `/metrics` shows, rendered in slices between which the event loop goes on."""
        slices = []
        for reading in self._readings():
            for text in text_slices(reading):
                slices.append(text)
                await asyncio.sleep(0)
        return b"".join(slices)

    def collect(self) -> Iterator[Family]:
        """For the registry, all at once."""
        return map(family_of, self._readings())

    def _readings(self) -> Iterator[Reading]:
        if self._core is not None:
            views = self._core.workers()
            absent = set(self._member_ids()).difference(view.worker.id for view in views)
            self._forget_all_but(view.worker.id for view in views)
            yield from worker_readings(self._core, views, sorted(absent))
        for series in self._counted:
            yield series.read()

    def _forget_all_but(self, worker_ids: Iterable[str]) -> None:
        """Series of workers and models that are gone vanish; "" and "other" are nobody's."""
        known = {*worker_ids, "", OTHER}
        self._model_labels.clear()
        for series in self._counted:
            if series.metric.labels[0] == "worker":
                series.keep(lambda labels: labels[0] in known)

    def _model_label(self, model: str) -> str:
        if model in self._model_labels or not model or self._core is None:
            return model
        if model not in self._core.models():
            return OTHER
        self._model_labels.add(model)
        return model

    def _counter(self, metric: table.Metric) -> Counter:
        self._counted.append(counter := Counter(metric))
        return counter

    def _histogram(self, metric: table.Metric) -> Histogram:
        self._counted.append(histogram := Histogram(metric))
        return histogram
