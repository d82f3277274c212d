"""The mock fleet as SGLang, and with data-parallel ranks: asked over its own sockets."""

from __future__ import annotations

import aiohttp
import msgspec
import pytest

from loadgen.mock_worker import MockFleet, main
from loadgen.wire import Layout
from router.engines.metrics_text import find_samples
from tests.support.serving import FAST


@pytest.fixture
async def http():
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def worker():
    async with MockFleet(1, engine=FAST, layout=Layout.SGLANG_MAPS, data_parallel_size=2) as fleet:
        yield fleet.workers[0]


async def ask(http, worker, path, body=None, **headers):
    method = "GET" if body is None else "POST"
    async with http.request(method, worker.url + path, json=body, headers=headers) as response:
        return response.status, msgspec.json.decode(await response.read())


def served(worker) -> list[int]:
    return [rank.model.counters.finished for rank in worker.ranks]


async def test_it_tells_what_it_is_and_where_it_publishes(http, worker):
    for path in ("/server_info", "/get_server_info"):
        _, info = await ask(http, worker, path)
        assert (info["version"], info["page_size"], info["dp_size"]) == ("0.5.23", 16, 2)
        assert info["kv_events"] == {
            "publisher": "zmq",
            "endpoint_host": "*",
            "endpoint_port_base": worker.events_port,
            "replay_endpoint_port_base": worker.replay_port,
            "topic": "",
            "block_size": 16,
            "dp_size": 2,
        }
    _, models = await ask(http, worker, "/v1/models")
    assert [(model["id"], model["owned_by"]) for model in models["data"]] == [("mock", "sglang")]
    assert (await ask(http, worker, "/model_info"))[1]["model_path"] == "mock"


@pytest.mark.parametrize("layout", [Layout.SGLANG_ARRAYS, Layout.SGLANG_SHORT_ARRAYS])
async def test_older_releases_announce_nothing(http, layout):
    async with MockFleet(1, engine=FAST, layout=layout) as fleet:
        assert "kv_events" not in (await ask(http, fleet.workers[0], "/server_info"))[1]


async def test_its_own_protocol_takes_text_or_ids_and_streams_the_text_so_far(http, worker):
    prompt = {"text": "one two three", "sampling_params": {"max_new_tokens": 3}}
    _, answer = await ask(http, worker, "/generate", prompt)
    assert (answer["meta_info"]["completion_tokens"], answer["meta_info"]["cached_tokens"]) == (3, 0)
    _, by_ids = await ask(
        http, worker, "/generate", {"input_ids": [5] * 40, "sampling_params": {"max_new_tokens": 1}}
    )
    assert by_ids["meta_info"]["prompt_tokens"] == 40
    async with http.post(worker.url + "/generate", json=prompt | {"stream": True}) as response:
        lines = [line[6:].strip() async for line in response.content if line.startswith(b"data: ")]
    events = [msgspec.json.decode(line) for line in lines[:-1]]
    assert lines[-1] == b"[DONE]"
    assert [len(event["text"].split()) for event in events] == [1, 2, 3]
    assert events[-1]["text"] == answer["text"]
    assert events[-1]["meta_info"]["prompt_tokens"] == answer["meta_info"]["prompt_tokens"]


async def test_mistakes_are_told_in_its_shape(http, worker):
    status, error = await ask(http, worker, "/generate", {"text": "a", "input_ids": [1]})
    assert (status, error["object"], error["param"]) == (400, "error", "text")


async def test_a_header_names_the_rank_for_openais_protocols_only(http, worker):
    body = {"prompt": "a", "max_tokens": 1}
    for _ in range(3):
        await ask(http, worker, "/v1/completions", body, **{"X-data-parallel-rank": "1"})
    assert served(worker) == [0, 3]
    status, error = await ask(http, worker, "/v1/completions", body, **{"X-data-parallel-rank": "2"})
    assert (status, error["message"]) == (400, "data_parallel_rank 2 is out of range [0, 2).")
    own = {"text": "a", "sampling_params": {"max_new_tokens": 1}}
    for _ in range(4):
        await ask(http, worker, "/generate", own, **{"X-data-parallel-rank": "1"})
    assert served(worker) == [2, 5]


async def test_without_a_header_ranks_take_turns_and_a_flush_clears_them_all(http, worker):
    for _ in range(4):
        await ask(http, worker, "/v1/completions", {"prompt": [7] * 40, "max_tokens": 1})
    assert served(worker) == [2, 2]
    assert [rank.model.pool.num_cached for rank in worker.ranks] == [2, 2]
    async with http.post(worker.url + "/flush_cache") as response:
        assert response.status == 200
    assert [rank.model.pool.num_cached for rank in worker.ranks] == [0, 0]


async def test_metrics_have_a_series_for_each_rank(http, worker):
    async with http.get(worker.url + "/metrics") as response:
        text = await response.read()
    ranks = {labels["dp_rank"] for labels, _ in find_samples(text, b"sglang:num_running_reqs")}
    assert ranks == {"0", "1"}
    assert not list(find_samples(text, b"process_start_time_seconds"))


def test_an_engine_speaks_only_what_it_ever_spoke(capsys):
    with pytest.raises(SystemExit):
        main(["--engine", "sglang", "--events-layout", "maps"])
    assert "which spoke sglang-maps, sglang-arrays, sglang-short-arrays" in capsys.readouterr().err
