"""Metrics: what is counted, what is read from the core, and that neither outlives its worker."""

from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from router.core.outcome import Outcome
from router.metrics import METRICS, Metrics
from router.metrics.export import text_slices
from router.metrics.limits import SERIES_MAX, SLICE_SAMPLES
from router.metrics.series import Counter, Histogram
from router.metrics.table import COUNTED, COUNTER, HISTOGRAM, ITL, READ, RETRIES
from tests.support.columns import MODEL
from tests.support.fleets import make_core, prompt_of, publishing, request, silent


@pytest.fixture
def metrics():
    return Metrics()


@pytest.fixture
def core():
    return make_core([silent("a"), silent("b")])


def value(metrics, name, **labels):
    return metrics.registry.get_sample_value(name, labels)


def in_flight(metrics, worker_id, policy="kv"):
    return value(metrics, "kvgate_requests_in_flight", worker=worker_id, policy=policy)


def record_everything(metrics, worker_id="a"):
    metrics.request_started(worker_id, MODEL)
    metrics.request_ended(worker_id, "kv", MODEL, "/v1/chat/completions", 200, "done", 1.5)
    metrics.ttft(worker_id, "kv", 0.2)
    metrics.itl(worker_id, "kv")(0.02)
    metrics.retry(worker_id, "connect")
    metrics.error("no_workers")
    metrics.stage("route", 0.0001)
    metrics.cached(worker_id, 64, 48)
    metrics.overlap_lost(worker_id, 32)
    metrics.token_fallback("timeout")
    metrics.client_gone("streaming")
    metrics.stream_error_event(worker_id, placed=True)


def test_each_call_leaves_its_count(metrics):
    record_everything(metrics)
    labels = {"worker": "a", "policy": "kv"}
    assert (
        value(
            metrics,
            "kvgate_requests_total",
            model=MODEL,
            endpoint="/v1/chat/completions",
            status="200",
            outcome="done",
            **labels,
        )
        == 1
    )
    assert value(metrics, "kvgate_dispatches_total", worker="a", model=MODEL) == 1
    assert value(metrics, "kvgate_retries_total", worker="a", reason="connect") == 1
    assert value(metrics, "kvgate_errors_total", kind="no_workers") == 1
    assert value(metrics, "kvgate_client_gone_total", phase="streaming") == 1
    assert value(metrics, "kvgate_stream_errors_total", worker="a", placed="true") == 1
    assert value(metrics, "kvgate_token_fallbacks_total", reason="timeout") == 1
    assert value(metrics, "kvgate_expected_cached_tokens_total", worker="a") == 64
    assert value(metrics, "kvgate_reported_cached_tokens_total", worker="a") == 48
    assert value(metrics, "kvgate_overlap_lost_tokens_total", worker="a") == 32
    for name, total in [("ttft_seconds", 0.2), ("itl_seconds", 0.02), ("request_duration_seconds", 1.5)]:
        assert value(metrics, f"kvgate_{name}_count", **labels) == 1
        assert value(metrics, f"kvgate_{name}_sum", **labels) == total
    assert value(metrics, "kvgate_decision_seconds_count", stage="route") == 1


def test_the_table_is_what_is_exported(metrics, core):
    metrics.watch(core)
    exported = {
        (f"{family.name}_total" if family.type == COUNTER else family.name) for family in metrics.collect()
    }
    assert exported == {metric.name for metric in METRICS}
    assert {metric.name for metric in COUNTED}.isdisjoint(metric.name for metric in READ)


def test_names_have_units_and_types_as_prometheus_wants_them():
    for metric in METRICS:
        assert metric.name.startswith("kvgate_")
        assert (metric.type == COUNTER) == metric.name.endswith("_total")
        assert (metric.type == HISTOGRAM) == bool(metric.buckets)
        assert list(metric.buckets) == sorted(set(metric.buckets))


@pytest.mark.parametrize(
    ("seconds", "bound"), [(0.002, "0.002"), (0.0021, "0.005"), (0.0, "0.002"), (20, "20.0")]
)
def test_a_value_falls_into_the_first_bucket_that_holds_it(metrics, seconds, bound):
    metrics.itl("a", "kv")(seconds)
    counts = {
        le: value(metrics, "kvgate_itl_seconds_bucket", worker="a", policy="kv", le=le)
        for le in [*(str(float(each)) for each in ITL.buckets), "+Inf"]
    }
    bounds = list(counts)
    assert [counts[each] for each in bounds] == [
        float(each >= bounds.index(bound)) for each in range(len(bounds))
    ]


def test_a_value_beyond_all_buckets_is_counted(metrics):
    metrics.itl("a", "kv")(1000)
    assert value(metrics, "kvgate_itl_seconds_bucket", worker="a", policy="kv", le="20.0") == 0
    assert value(metrics, "kvgate_itl_seconds_bucket", worker="a", policy="kv", le="+Inf") == 1
    assert value(metrics, "kvgate_itl_seconds_sum", worker="a", policy="kv") == 1000


async def test_the_exposition_is_what_prometheus_parses(metrics, core):
    record_everything(metrics)
    metrics.watch(core)
    text = (await metrics.exposition()).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert len(families) == len(METRICS)
    assert families["kvgate_itl_seconds"].type == HISTOGRAM
    assert families["kvgate_requests"].documentation.startswith("Requests that ended")


async def test_slices_make_the_same_text_as_one_piece(core, metrics):
    for number in range(SLICE_SAMPLES):
        record_everything(metrics, f"w{number}")
    assert (await metrics.exposition()).splitlines() == generate_latest(metrics.registry).splitlines()
    assert len(list(text_slices(metrics._itl.read()))) > 10


# Read from the core


def test_any_way_out_leaves_nothing_in_flight(metrics, core):
    metrics.watch(core)
    outcomes = list(Outcome)
    for number in range(20):
        core.route(request(f"r{number}"), prompt_of(range(number, number + 64)), now=1.0)
    assert in_flight(metrics, "a") + in_flight(metrics, "b") == 20
    for number in range(20):
        core.finish(f"r{number}", outcomes[number % len(outcomes)], now=2.0)
    assert (in_flight(metrics, "a"), in_flight(metrics, "b")) == (0, 0)
    assert value(metrics, "kvgate_active_prefill_tokens", worker="a") == 0
    assert value(metrics, "kvgate_active_decode_blocks", worker="a") == 0


def test_what_is_booked_on_a_worker_shows(metrics):
    core = make_core([silent("a")])
    metrics.watch(core)
    core.route(request("r"), prompt_of(range(64)), now=1.0)
    assert in_flight(metrics, "a") == 1
    assert value(metrics, "kvgate_active_prefill_tokens", worker="a") == 64
    assert value(metrics, "kvgate_active_decode_blocks", worker="a") == 4
    assert value(metrics, "kvgate_predicted_blocks", worker="a") == 4
    assert value(metrics, "kvgate_index_blocks", worker="a") == 0


def test_a_draining_worker_is_not_up(metrics, core):
    metrics.watch(core)
    core.set_draining("a", True, now=1.0)
    assert value(metrics, "kvgate_worker_up", worker="a") == 0
    assert value(metrics, "kvgate_worker_up", worker="b") == 1


def test_a_member_of_the_fleet_that_has_not_answered_yet_is_not_up(metrics, core):
    metrics.watch(core, lambda: ["a", "b", "c"])
    up = {each: value(metrics, "kvgate_worker_up", worker=each) for each in "abc"}
    assert up == {"a": 1, "b": 1, "c": 0}
    assert in_flight(metrics, "c") is None


def test_exactly_one_trust_level_of_a_worker_is_1(metrics, core):
    metrics.watch(core)
    levels = {
        level: value(metrics, "kvgate_worker_trust", worker="a", level=level)
        for level in ("exact", "recovering", "degraded", "predicted")
    }
    assert levels == {"exact": 0, "recovering": 0, "degraded": 0, "predicted": 1}


def test_event_counters_are_those_of_publishers(metrics):
    core = make_core([publishing("a"), silent("b")])
    metrics.watch(core)
    slot = core.slot_of("a")
    core.feed.connected(slot)
    core.feed.malformed(slot, "two_frames")
    assert value(metrics, "kvgate_kv_events_total", worker="a") == 0
    assert value(metrics, "kvgate_kv_events_total", worker="b") is None
    (ignored,) = [family for family in metrics.collect() if family.name == "kvgate_kv_events_ignored"]
    assert [(sample.labels["worker"], sample.value) for sample in ignored.samples] == [("a", 1)]


# Bounded label sets


def test_series_of_removed_workers_vanish(metrics, core):
    metrics.watch(core)
    record_everything(metrics, "a")
    record_everything(metrics, "b")
    core.reconcile([silent("b")], now=1.0)
    labels = {sample.labels.get("worker") for family in metrics.collect() for sample in family.samples}
    assert labels == {None, "b"}


def test_requests_that_met_no_worker_stay(metrics, core):
    metrics.watch(core)
    metrics.request_ended("", "", MODEL, "/v1/completions", 503, "rejected", 0.1)
    assert value(metrics, "kvgate_request_duration_seconds_count", worker="", policy="") == 1


def test_only_served_models_become_labels(metrics, core):
    metrics.watch(core)
    metrics.request_started("a", MODEL)
    metrics.request_started("a", "whatever-the-client-typed")
    assert value(metrics, "kvgate_dispatches_total", worker="a", model=MODEL) == 1
    assert value(metrics, "kvgate_dispatches_total", worker="a", model="other") == 1


def test_a_model_that_comes_later_gets_its_label(metrics, core):
    metrics.watch(core)
    metrics.request_started("c", "new")
    core.reconcile([silent("c", models=())], now=1.0)
    metrics.request_started("c", "new")
    assert value(metrics, "kvgate_dispatches_total", worker="c", model="other") == 2


def test_too_many_label_sets_are_counted_together():
    counter, histogram = Counter(RETRIES), Histogram(ITL)
    for number in range(SERIES_MAX + 5):
        counter.add((f"w{number}", "connect"))
        histogram.observe((f"w{number}", "kv"), 1.0)
    assert len(counter.values) == len(histogram.values) == SERIES_MAX + 1
    assert counter.values[("other", "other")] == 5
    assert histogram.values[("other", "other")][-1] == 5.0


# Documentation


def test_the_documentation_names_every_metric():
    text = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text(encoding="utf-8")
    text = text[: text.index("## Questions")]
    rows = [
        tuple(cell.strip() for cell in line.strip("|").split("|"))
        for line in text.splitlines()
        if "kvgate_" in line and line.startswith("|")
    ]
    assert rows == [
        (f"`{metric.name}`", metric.type, ", ".join(f"`{label}`" for label in metric.labels), metric.help)
        for metric in METRICS
    ]
