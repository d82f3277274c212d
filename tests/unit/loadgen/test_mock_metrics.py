"""The mock's metrics text says what the model did, under the names that the gateway reads."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from loadgen.mock_metrics import render_sglang_metrics, render_vllm_metrics
from router.engines import EngineGauges, parse_rank_gauges
from tests.support.engines import answer, small_model

PROMPT = list(range(100, 110))


def samples(model):
    text = render_vllm_metrics(
        [model], model_name="m", block_tokens=4, start_time=1.5, lag_seconds_mean=0.001, lag_seconds_max=0.002
    )
    families = text_string_to_metric_families(text)
    return text, {sample.name: sample for family in families for sample in family.samples}


def test_counters_are_those_of_the_model():
    model = small_model()
    answer(model, PROMPT)
    answer(model, PROMPT)
    _, found = samples(model)
    assert found["vllm:prefix_cache_queries_total"].value == 20
    assert found["vllm:prefix_cache_hits_total"].value == 8
    assert found["vllm:request_success_total"].value == 2
    assert found["process_start_time_seconds"].value == 1.5


def test_capacity_is_told_as_vllm_tells_it():
    model = small_model()
    _, found = samples(model)
    labels = found["vllm:cache_config_info"].labels
    assert int(labels["block_size"]) == model.settings.block_tokens
    assert int(labels["num_gpu_blocks"]) == model.settings.num_blocks


def test_the_gateway_reads_its_gauges():
    text, _ = samples(small_model())
    gauges = EngineGauges.over(parse_rank_gauges(text.encode()).values())
    assert (gauges.running, gauges.waiting, gauges.kv_usage) == (0, 0, 0.0)


def test_each_rank_has_series_of_its_own():
    busy = small_model()
    busy.submit("r", PROMPT, 4)
    busy.start_step(0.0)
    names = {
        "model_name": "m",
        "block_tokens": 4,
        "start_time": 1.5,
        "lag_seconds_mean": 0.0,
        "lag_seconds_max": 0.0,
    }
    text = render_vllm_metrics([small_model(), busy], **names)
    gauges = parse_rank_gauges(text.encode())
    assert (gauges["0"].running, gauges["1"].running) == (0, 1)
    gauges = parse_rank_gauges(render_sglang_metrics([small_model(), busy], model_name="m").encode())
    assert (gauges["0"].running, gauges["1"].running) == (0, 1)


def test_a_lone_rank_of_sglang_has_no_label_for_it():
    text = render_sglang_metrics([small_model()], model_name="m")
    assert list(parse_rank_gauges(text.encode())) == [""]
