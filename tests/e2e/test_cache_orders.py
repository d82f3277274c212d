"""Caches that are emptied by order, engines that sleep, and workers that were warm before the gateway."""

from __future__ import annotations

import contextlib

import pytest

from loadgen.engine import EngineModel
from loadgen.mock_worker import MockFleet
from loadgen.wire import Layout
from router.config import WorkerConfig
from tests.support.fake_worker import FakeWorker
from tests.support.serving import FAST, counted, row_of, serving, trust_of, with_events
from tests.support.waiting import eventually


@pytest.fixture
async def mocks():
    async with MockFleet(1, engine=FAST) as fleet:
        yield fleet.workers


def words(name: str, num: int = 60) -> str:
    return " ".join(f"{name}{i}" for i in range(num))


def blocks_of(client) -> int:
    return row_of(client.gateway, "w0")["index"]["num_blocks"]


def cached_in(answer) -> int:
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


async def expected_of(client, name: str) -> int:
    _, explained = await client.admin(f"/explain?request_id={name}")
    return explained["decisions"][0]["expected_cached_tokens"]


async def test_a_reset_empties_the_index_before_its_event_and_the_event_clears_nothing_new(mocks) -> None:
    async with serving(with_events(mocks), bridge_ttl=60.0) as client:
        await client.complete(words("a"))
        await eventually(lambda: blocks_of(client) > 0, what="blocks are known")
        num_messages = mocks[0].num_event_messages
        status, answer = await client.admin("/workers/w0/reset_prefix_cache", "POST")
        assert (status, answer["worker"]["id"]) == (200, "w0")
        assert mocks[0].num_event_messages == num_messages, "the engine has told nothing yet"
        assert blocks_of(client) == 0
        _, answer = await client.complete(words("a"), x_request_id="after")
        assert (await expected_of(client, "after"), cached_in(answer)) == (0, 0)
        await eventually(lambda: blocks_of(client) > 0, what="what was stored since stays")
        _, answer = await client.complete(words("a"), x_request_id="again")
        assert await expected_of(client, "again") == cached_in(answer) > 0
        assert trust_of(client.gateway, "w0") == "exact"


async def test_a_reset_that_a_busy_engine_refuses_clears_nothing(mocks, monkeypatch) -> None:
    async with serving(with_events(mocks)) as client:
        await client.complete(words("a"))
        await eventually(lambda: blocks_of(client) > 0, what="blocks are known")
        monkeypatch.setattr(EngineModel, "reset_prefix_cache", lambda self: False)
        num_blocks = blocks_of(client)
        status, answer = await client.admin("/workers/w0/reset_prefix_cache", "POST")
        assert (status, answer["error"]["code"]) == (409, "refused")
        assert "are requests running?" in answer["error"]["message"]
        assert blocks_of(client) == num_blocks


async def test_orders_to_workers_that_are_not_there(mocks) -> None:
    async with serving(with_events(mocks)) as client:
        status, answer = await client.admin("/workers/nobody/sleep", "POST")
        assert (status, answer["error"]["code"]) == (404, "not_found")


METRICS = b"""
vllm:cache_config_info{block_size="16",num_gpu_blocks="100",engine="0"} 1.0
vllm:engine_sleep_state{engine="0",sleep_state="awake"} %d
vllm:engine_sleep_state{engine="0",sleep_state="weights_offloaded"} %d
vllm:engine_sleep_state{engine="0",sleep_state="discard_all"} 0.0
"""


@contextlib.asynccontextmanager
async def sleepy_worker():
    """A vLLM that can sleep. `state` is changed by its own answers, or from outside."""
    state = {"sleeps": False}

    def set_sleeping(value: bool):
        def answer(body: bytes):
            state["sleeps"] = value
            return 200, b""

        return answer

    worker = FakeWorker(
        {
            "GET /v1/models": (200, b'{"data": [{"id": "m", "owned_by": "vllm", "parent": null}]}'),
            "GET /health": (200, b""),
            "GET /version": (200, b'{"version": "0.32.0"}'),
            "GET /metrics": lambda _: (200, METRICS % (not state["sleeps"], state["sleeps"])),
            "GET /is_sleeping": lambda _: (
                200,
                b'{"is_sleeping": %s}' % str(state["sleeps"]).lower().encode(),
            ),
            "POST /sleep": set_sleeping(True),
            "POST /wake_up": set_sleeping(False),
            "POST /v1/completions": (200, b'{"choices": [], "usage": {"prompt_tokens": 3}}'),
        }
    )
    worker.state = state
    async with worker:
        yield worker


async def test_a_worker_sleeps_and_wakes_by_order_and_gets_nothing_meanwhile() -> None:
    async with sleepy_worker() as worker, serving([WorkerConfig(url=worker.url, name="w0")]) as client:
        body = {"model": "m", "prompt": words("a")}
        await client.post("/v1/completions", body)
        assert row_of(client.gateway, "w0")["index"]["num_predicted_blocks"] > 0
        status, answer = await client.admin("/workers/w0/sleep?level=2", "POST")
        assert (status, answer["worker"]["state"]) == (200, "asleep")
        assert answer["worker"]["index"]["num_predicted_blocks"] == 0
        status, error, _ = await client.post("/v1/completions", body)
        assert (status, error["error"]["code"]) == (503, "no_workers")
        assert "1 asleep" in error["error"]["message"]
        assert counted(client.gateway, "kvgate_worker_up", worker="w0") == 0
        status, answer = await client.admin("/workers/w0/wake_up", "POST")
        assert (status, answer["worker"]["state"]) == (200, "healthy")
        assert (await client.post("/v1/completions", body))[0] == 200


async def test_a_worker_put_to_sleep_by_others_is_seen_in_its_metrics() -> None:
    async with sleepy_worker() as worker, serving([WorkerConfig(url=worker.url, name="w0")]) as client:
        worker.state["sleeps"] = True
        await eventually(lambda: row_of(client.gateway, "w0")["state"] == "asleep", what="asleep")
        worker.state["sleeps"] = False
        await eventually(lambda: row_of(client.gateway, "w0")["state"] == "healthy", what="awake")


async def test_an_engine_that_does_not_know_the_order_stays_as_it_was() -> None:
    async with sleepy_worker() as worker, serving([WorkerConfig(url=worker.url, name="w0")]) as client:
        del worker.answers["POST /sleep"]
        status, answer = await client.admin("/workers/w0/sleep", "POST")
        assert (status, answer["error"]["code"]) == (409, "refused")
        assert "VLLM_SERVER_DEV_MODE=1" in answer["error"]["message"]
        assert row_of(client.gateway, "w0")["state"] == "healthy"
        worker.answers["POST /sleep"] = None
        status, answer = await client.admin("/workers/w0/sleep", "POST")
        assert (status, answer["error"]["code"]) == (502, "worker_unavailable")
        assert row_of(client.gateway, "w0")["state"] == "healthy"


async def test_a_worker_that_was_warm_before_us_is_learnt_from_what_it_reports(mocks) -> None:
    """Without a replay socket nothing tells what it held before."""
    configured = WorkerConfig(url=mocks[0].url, name="w0", kv_events=mocks[0].events_endpoint)
    async with serving([configured]) as client:
        await client.complete(words("a", 200))
    async with serving([configured], bridge_ttl=0.01) as client:
        assert blocks_of(client) == 0
        _, answer = await client.complete(words("a", 200), x_request_id="first")
        assert (await expected_of(client, "first"), cached_in(answer) > 0) == (0, True)
        row = row_of(client.gateway, "w0")
        assert row["events"]["num_learnt_blocks"] == cached_in(answer) // 16 == row["events"]["num_learnt"]
        assert counted(client.gateway, "kvgate_kv_learnt_blocks", worker="w0") > 0
        assert row["parity"]["warning"] is None
        _, answer = await client.complete(words("a", 200), x_request_id="second")
        assert await expected_of(client, "second") == cached_in(answer)
        await mocks[0].fault("restart")
        await eventually(
            lambda: row_of(client.gateway, "w0")["events"]["num_learnt_blocks"] == 0,
            what="another process holds none of it",
        )


async def test_an_order_to_sglang_concerns_all_ranks_behind_the_url() -> None:
    async with (
        MockFleet(1, engine=FAST, layout=Layout.SGLANG_MAPS, data_parallel_size=2) as fleet,
        serving([WorkerConfig(url=fleet.workers[0].url, name="s")], until_ready=False) as client,
    ):

        def rows():
            return [row for row in client.gateway.fleet.views() if row["state"] == "healthy"]

        await eventually(
            lambda: [row["trust"]["level"] for row in rows()] == ["exact"] * 2, what="both ranks join"
        )
        for number in range(6):
            await client.complete(words(f"p{number}"))
        await eventually(lambda: all(row["index"]["num_blocks"] for row in rows()), what="both hold blocks")
        status, answer = await client.admin("/workers/s/reset_prefix_cache", "POST")
        assert status == 200, answer
        assert [row["index"]["num_blocks"] for row in answer["workers"]] == [0, 0]
        status, answer = await client.admin("/workers/s@1/sleep?level=1", "POST")
        assert (status, answer["error"]["code"]) == (400, "bad_request")
        assert "Orders to sglang have no parameters, not level" in answer["error"]["message"]
