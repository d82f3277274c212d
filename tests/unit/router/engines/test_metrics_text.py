"""Gauges out of recorded metrics, and the merged text of a fleet."""

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from router.engines import EngineGauges, merge_metrics, parse_rank_gauges
from router.engines.metrics_text import find_samples

RECORDED = Path(__file__).parents[3] / "fixtures" / "http" / "vllm-0.32.0"
TWO_RANKS = (RECORDED / "metrics_dp2.txt").read_bytes()


def over_all(text: bytes) -> EngineGauges:
    return EngineGauges.over(parse_rank_gauges(text).values())


def test_gauges_under_load():
    gauges = over_all((RECORDED / "metrics_under_load.txt").read_bytes())
    assert gauges == EngineGauges(running=4, waiting=6, kv_usage=pytest.approx(0.4444, rel=1e-3))


def test_ranks_are_summed_and_the_fullest_counts():
    text = TWO_RANKS
    for name, values in ((b"running", (2, 3)), (b"waiting", (5, 0))):
        for rank, value in enumerate(values):
            label = b'vllm:num_requests_%s{engine="%d",model_name="tiny-llama"} ' % (name, rank)
            text = text.replace(label + b"0.0", label + b"%d.0" % value)
    label = b'vllm:kv_cache_usage_perc{engine="1",model_name="tiny-llama"} '
    text = text.replace(label + b"0.0", label + b"0.75")
    assert over_all(text) == EngineGauges(running=5, waiting=5, kv_usage=0.75)
    assert parse_rank_gauges(text) == {"0": EngineGauges(2, 5, 0.0), "1": EngineGauges(3, 0, 0.75)}


def test_series_of_one_rank_are_not_summed():
    """SGLang repeats a rank's gauges for each of its tensor-parallel processes."""
    text = b"\n".join(
        b'sglang:%s{model_name="m",tp_rank="%d",dp_rank="%d"} %s' % (name, tp, dp, value)
        for name, value in (
            (b"num_running_reqs", b"4.0"),
            (b"num_queue_reqs", b"1.0"),
            (b"token_usage", b"0.5"),
        )
        for tp in (0, 1)
        for dp in (0, 1)
    )
    assert over_all(text) == EngineGauges(running=8, waiting=2, kv_usage=0.5)


def test_the_older_name_of_the_usage():
    text = b'vllm:gpu_cache_usage_perc{model_name="m"} 0.25\n'
    assert over_all(text) == EngineGauges(kv_usage=0.25)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"<html>",
        b"vllm:num_requests_running",
        b"vllm:num_requests_running{",
        b'vllm:num_requests_running{engine="0"} many',
        b'vllm:num_requests_running{engine="0"} NaN\nvllm:num_requests_waiting +Inf',
        b"# HELP vllm:num_requests_running x 5",
    ],
)
def test_rubbish_has_no_gauges(text):
    assert over_all(text) == EngineGauges()


def test_samples_of_longer_names_are_others():
    text = b'm_total 1\nm{a="x, \\"y\\"}",b=""} 2 1700000000000\nm 3\nnm 4\nm'
    assert list(find_samples(text, b"m")) == [({"a": 'x, \\"y\\"}', "b": ""}, 2.0), ({}, 3.0)]


async def test_the_merged_text_is_one_text():
    texts = {name: (RECORDED / "metrics.txt").read_text() for name in ("a:8000", 'b"\\')}
    families = list(text_string_to_metric_families(await merge_metrics(texts)))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    assert {sample.labels["worker"] for family in families for sample in family.samples} == set(texts)
    alone = list(text_string_to_metric_families(texts["a:8000"]))
    assert sum(len(f.samples) for f in families) == 2 * sum(len(f.samples) for f in alone)
    assert {f.name: f.type for f in families} == {f.name: f.type for f in alone}


async def test_values_and_own_labels_stay():
    merged = await merge_metrics({"w": 'a{worker="x",b="}"} 1\nb 2 1700000000000\nc{} 3\n'})
    assert merged.splitlines() == [
        'a{worker="w",exported_worker="x",b="}"} 1',
        'b{worker="w"} 2 1700000000000',
        'c{worker="w"} 3',
    ]


async def test_rubbish_of_one_worker_leaves_the_others_alone():
    good = "# HELP a An a.\n# TYPE a gauge\na 1\n"
    merged = await merge_metrics(
        {"bad": "<html>\n{}\na{ 1\na\n# EOF\n\x00", "worse": "# TYPE a\n# TYPE a cat\n# HELP\n", "good": good}
    )
    assert merged == good.replace("a 1", 'a{worker="good"} 1')
