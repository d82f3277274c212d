"""The gateway as its users have it: mock engines behind the whole of it, and what befalls them."""

from __future__ import annotations

import asyncio
import logging

import aiohttp
import pytest
import zmq

from loadgen.engine import EngineSettings
from loadgen.mock_worker import MockFleet
from router.config import WorkerConfig
from router.fleet.limits import RUBBISH_MESSAGES
from router.limits import RelayLimits
from tests.support.fake_worker import FakeWorker
from tests.support.kv_publisher import KvPublisher
from tests.support.serving import (
    FAST,
    at_rest,
    counted,
    row_of,
    serving,
    settled,
    trust_of,
    with_events,
    without_events,
)
from tests.support.waiting import eventually


def words(name: str, num: int = 100) -> str:
    return " ".join(f"{name}{i}" for i in range(num))


@pytest.fixture
async def mocks():
    async with MockFleet(2, engine=FAST) as fleet:
        yield fleet.workers


CHAT = [{"role": "system", "content": words("s")}, {"role": "user", "content": words("u")}]
BODIES = {
    "/v1/completions": {"prompt": words("p")},
    "/v1/chat/completions": {"messages": CHAT},
    "/v1/responses": {"input": words("r")},
    "/v1/messages": {"messages": [{"role": "user", "content": words("m")}]},
}


@pytest.mark.parametrize("path", BODIES)
async def test_the_second_prompt_goes_to_its_holder_in_every_protocol(mocks, path) -> None:
    body = {"model": "mock", "max_tokens": 2, "max_output_tokens": 2} | BODIES[path]
    async with serving(with_events(mocks)) as client:
        holders = set()
        for _ in range(5):
            status, answer, headers = await client.post(path, body)
            assert status == 200, answer
            holders.add(headers["x-kvgate-worker"])
        assert len(holders) == 1


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_expected_cached_tokens_are_what_the_engine_reports(mocks, path) -> None:
    body = {"model": "mock", "max_tokens": 2} | BODIES[path]
    async with serving(with_events(mocks)) as client:
        for turn in range(4):
            _, answer, _ = await client.post(path, body, x_request_id=f"turn-{turn}")
            await settled(client.gateway, *mocks)
            _, explained = await client.admin(f"/explain?request_id=turn-{turn}")
            decision = explained["decisions"][0]
            reported = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert decision["expected_cached_tokens"] == reported
            assert decision["trust"] == "exact"
            assert (reported > 0) == (turn > 0)


async def test_a_growing_conversation_is_expected_exactly_generated_blocks_included(mocks) -> None:
    messages = [{"role": "user", "content": words("q", 60)}]
    async with serving(with_events(mocks)) as client:
        for turn in range(4):
            body = {"model": "mock", "messages": messages, "max_tokens": 40}
            _, answer, _ = await client.post("/v1/chat/completions", body, x_request_id=f"c-{turn}")
            await settled(client.gateway, *mocks)
            _, explained = await client.admin(f"/explain?request_id=c-{turn}")
            reported = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert explained["decisions"][0]["expected_cached_tokens"] == reported
            messages.append(answer["choices"][0]["message"] | {"tool_calls": None})
            messages.append({"role": "user", "content": words(f"q{turn}", 20)})


async def test_what_was_just_sent_counts_as_held_before_any_event_tells(mocks) -> None:
    async with serving(with_events(mocks), bridge_ttl=60.0) as client:
        for worker in mocks:
            await worker.fault("drop_events")
        holders = [(await client.complete(words("a")))[0] for _ in range(5)]
        assert len(set(holders)) == 1
        assert row_of(client.gateway, holders[0])["index"]["num_blocks"] == 0


async def test_without_events_decisions_are_believed_until_the_worker_restarts(mocks) -> None:
    async with serving(without_events(mocks)) as client:
        holder, _ = await client.complete(words("a"))
        assert trust_of(client.gateway, holder) == "predicted"
        assert "no KV event endpoint" in row_of(client.gateway, holder)["trust"]["reason"]
        assert {(await client.complete(words("a")))[0] for _ in range(4)} == {holder}
        assert row_of(client.gateway, holder)["index"]["num_predicted_blocks"] > 0
        await mocks[int(holder[1])].fault("restart")
        await eventually(
            lambda: row_of(client.gateway, holder)["index"]["num_predicted_blocks"] == 0,
            what="the restarted worker's predictions are forgotten",
        )


async def test_a_restarted_engine_is_never_believed_to_hold_its_old_blocks(mocks) -> None:
    async with serving(with_events(mocks), bridge_ttl=0.05) as client:
        holder, _ = await client.complete(words("a", 300))
        index = int(holder[1])
        await eventually(lambda: row_of(client.gateway, holder)["index"]["num_blocks"] > 0)
        await mocks[index].fault("restart")
        await eventually(
            lambda: (
                row_of(client.gateway, holder)["index"]["num_blocks"] == 0
                and trust_of(client.gateway, holder) == "exact"
            ),
            what="old blocks gone, exact again",
        )
        _, answer = await client.complete(words("a", 300))
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_lost_events_are_replayed_and_nothing_is_believed_meanwhile(mocks) -> None:
    async with serving(with_events(mocks), bridge_ttl=0.05) as client:
        holder, _ = await client.complete(words("a"))
        worker = mocks[int(holder[1])]
        await worker.fault("drop_events", count=2)
        for i in range(3):
            await client.complete(f"{words('a')} {words(f'more{i}', 60)}")
        await eventually(
            lambda: row_of(client.gateway, holder)["events"]["num_gaps"] > 0, what="the gap is seen"
        )
        await settled(client.gateway, *mocks)
        await eventually(lambda: trust_of(client.gateway, holder) == "exact", what="replayed")
        for i in range(3):
            prompt = f"{words('a')} {words(f'more{i}', 60)}"
            _, answer = await client.complete(prompt, x_request_id=f"again-{i}")
            _, explained = await client.admin(f"/explain?request_id=again-{i}")
            reported = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert explained["decisions"][0]["expected_cached_tokens"] == reported > 0


async def test_garbage_on_the_event_socket_is_counted_and_serving_goes_on(mocks) -> None:
    context = zmq.Context.instance()
    publisher = KvPublisher(context)
    worker = WorkerConfig(
        url=mocks[0].url, name="w0", kv_events=publisher.endpoint, kv_replay=publisher.replay_endpoint
    )
    try:
        async with serving([worker]) as client:
            publisher.send_raw(b"one frame")
            publisher.send_raw(b"", b"not eight bytes", b"\xff\xfe")
            publisher.publish(b"\xc1 no msgpack")
            publisher.publish(b"\x93\x00\x91\x91\xa7Unheard\x00")
            await eventually(
                lambda: sum(row_of(client.gateway, "w0")["events"]["ignored"].values()) >= 4,
                what="all four are counted",
            )
            _, shown = await client.admin("/workers/w0")
            assert sum(shown["worker"]["events"]["ignored"].values()) >= 4
            await client.complete(words("a"))
    finally:
        publisher.close()


async def test_a_socket_that_sends_mostly_rubbish_is_named_once(mocks, caplog) -> None:
    publisher = KvPublisher(zmq.Context.instance())
    worker = WorkerConfig(
        url=mocks[0].url, name="w0", kv_events=publisher.endpoint, kv_replay=publisher.replay_endpoint
    )

    def told() -> list[str]:
        return [line for each in caplog.records if "can't be read" in (line := each.getMessage())]

    try:
        async with serving([worker]) as client:
            for number in range(RUBBISH_MESSAGES):
                publisher.publish(b"\xc1 no msgpack %d" % number)
            await eventually(told, what="it is said")
            publisher.publish(b"\xc1 more of it")
            ignored = client.gateway.core.feed.stats(0).ignored
            await eventually(lambda: ignored["malformed_payload"] > RUBBISH_MESSAGES, what="it is counted")
    finally:
        publisher.close()
    (line,) = told()
    assert line.startswith(f"worker w0: most of what comes from {publisher.endpoint} can't be read (")
    assert "messages: malformed_payload)" in line


async def test_a_worker_that_is_down_at_start_joins_when_it_answers(mocks, caplog) -> None:
    await mocks[1].fault("die")
    async with serving(with_events(mocks), until_ready=False) as client:
        await eventually(lambda: client.gateway.fleet.is_ready(), what="the first worker serves")
        await eventually(lambda: row_of(client.gateway, "w1").get("state") == "pending")
        assert (await client.complete(words("a")))[0] == "w0"
        await mocks[1].fault("clear")
        await eventually(lambda: trust_of(client.gateway, "w1") == "exact", what="w1 joins")
        assert {(await client.complete(words(f"x{i}")))[0] for i in range(4)} == {"w0", "w1"}
    assert any("w1: does not answer yet" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("fault", ["refuse", "hang"])
async def test_a_worker_that_comes_back_is_told_once(mocks, caplog, fault) -> None:
    """An engine that hung or was cut off and is the same process."""
    caplog.set_level(logging.INFO, "kvgate.fleet")
    timeouts = {"health_check_timeout_secs": 0.2}
    async with serving(with_events(mocks[:1]), **timeouts) as client:
        await mocks[0].fault(fault)
        await eventually(lambda: row_of(client.gateway, "w0")["state"] == "suspect", what="it is away")
        await mocks[0].fault("clear")
        await eventually(lambda: row_of(client.gateway, "w0")["state"] == "healthy", what="it is back")
    said = [record.getMessage() for record in caplog.records]
    assert sum("is not served any more" in line for line in said) >= 1
    assert [line for line in said if "served again" in line] == ["worker w0: is served again"]


async def test_no_worker_at_all_is_an_answer_and_passes(mocks) -> None:
    for worker in mocks:
        await worker.fault("die")
    async with serving(with_events(mocks), until_ready=False) as client:
        assert (await client.get("/health"))[0] == 200
        assert (await client.get("/readyz"))[0] == 503
        status, error, _ = await client.post("/v1/completions", {"model": "mock", "prompt": "a"})
        assert (status, error["error"]["code"]) == (503, "no_workers")
        for worker in mocks:
            await worker.fault("clear")
        await eventually(client.gateway.fleet.is_ready, what="ready")
        assert (await client.get("/readiness"))[0] == 200
        await client.complete(words("a"))


async def test_all_workers_lost_then_back(mocks) -> None:
    async with serving(with_events(mocks)) as client:
        for worker in mocks:
            await worker.fault("die")
        status, error, _ = await client.post("/v1/completions", {"model": "mock", "prompt": "a"})
        assert (status, error["error"]["code"]) == (502, "connect_failed")
        assert (await client.get("/livez"))[0] == 200
        await eventually(lambda: not client.gateway.fleet.is_ready(), what="not ready")
        await mocks[0].fault("clear")
        await eventually(client.gateway.fleet.is_ready, what="ready again")
        assert (await client.complete(words("a")))[0] == "w0"


async def test_a_worker_that_dies_before_answering_is_replaced(mocks) -> None:
    """Its prefill hangs; then it is killed: the client sees one whole answer, from the other."""
    async with serving(with_events(mocks)) as client:
        holder, _ = await client.complete(words("a"))
        victim = mocks[int(holder[1])]
        await victim.fault("slow", factor=10_000.0)
        asking = asyncio.ensure_future(client.stream(words("a"), max_tokens=3))
        await eventually(lambda: victim.stats()["active_requests"] == 1, what="the worker has the request")
        await victim.fault("die")
        worker, events = await asking
        assert worker != holder
        assert len(events) == 4
        assert events[-1] == "[DONE]"
        assert counted(client.gateway, "kvgate_retries_total") == 1


async def test_a_worker_that_dies_mid_stream_ends_it_with_an_error_event() -> None:
    async with (
        MockFleet(2, engine=EngineSettings(speedup=2.0)) as fleet,
        serving(with_events(fleet.workers)) as client,
    ):
        await fleet.workers[0].fault("error_mid_stream", after_tokens=3)
        await fleet.workers[1].fault("error_mid_stream", after_tokens=3)
        _, events = await client.stream(words("a"), max_tokens=50)
        assert '"worker_unavailable"' in events[-2]
        assert events[-1] == "[DONE]"
        assert len(events) == 5
        assert counted(client.gateway, "kvgate_stream_errors_total", placed="true") == 1


async def test_a_client_that_leaves_aborts_the_engines_request() -> None:
    async with MockFleet(1, engine=EngineSettings()) as fleet, serving(with_events(fleet.workers)) as client:
        body = {"model": "mock", "prompt": words("a"), "max_tokens": 5000, "stream": True}
        response = await client.session.post(client.url("/v1/completions"), json=body)
        await response.content.readany()
        worker = fleet.workers[0]
        assert worker.stats()["active_requests"] == 1
        response.close()
        await eventually(lambda: worker.stats()["active_requests"] == 0, what="aborted at the engine")
        await at_rest(client.gateway)
        assert counted(client.gateway, "kvgate_client_gone_total") == 1


async def test_workers_come_and_go_over_the_admin_port(mocks) -> None:
    async with serving(with_events(mocks[:1])) as client:
        new = with_events(mocks)[1]
        added = {"url": new.url, "name": "w1", "kv_events": new.kv_events, "kv_replay": new.kv_replay}
        status, answer = await client.admin("/workers", "POST", added)
        assert (status, answer["worker"]["id"]) == (201, "w1")
        await eventually(lambda: trust_of(client.gateway, "w1") == "exact")
        assert (await client.admin("/workers", "POST", added))[0] == 400
        await client.complete(words("a"))
        await client.complete(words("b"))
        await eventually(lambda: row_of(client.gateway, "w1")["index"]["num_blocks"] > 0)
        assert (await client.admin("/workers/w1", "DELETE"))[0] == 200
        assert [row["id"] for row in client.gateway.fleet.views()] == ["w0"]
        assert {(await client.complete(words(name)))[0] for name in "abcd"} == {"w0"}
        assert (await client.admin("/workers/w1", "DELETE"))[0] == 404
        assert (await client.admin(f"/add_worker?url={mocks[1].url}"))[0] == 201
        assert mocks[1].url in (await client.admin("/list_workers"))[1]["urls"]
        assert (await client.admin(f"/remove_worker?url={mocks[1].url}"))[0] == 200


async def test_a_worker_added_while_down_is_accepted_and_joins_later(mocks) -> None:
    await mocks[1].fault("die")
    async with serving(with_events(mocks[:1])) as client:
        status, answer = await client.admin("/workers", "POST", {"url": mocks[1].url, "name": "w1"})
        assert (status, answer["worker"]["state"]) == (202, "pending")
        await mocks[1].fault("clear")
        await eventually(lambda: row_of(client.gateway, "w1")["state"] == "healthy")


async def test_workers_show_the_tokens_of_running_streams_and_none_afterwards() -> None:
    async with (
        MockFleet(1, engine=EngineSettings(speedup=10.0)) as fleet,
        serving(with_events(fleet.workers), limits=RelayLimits(linger_seconds=0.02)) as client,
    ):

        def num_tokens() -> int:
            return row_of(client.gateway, "w0")["load"]["active_output_tokens"]

        body = {"model": "mock", "prompt": words("a"), "max_tokens": 5000, "stream": True}
        async with client.session.post(client.url("/v1/completions"), json=body) as response:
            first = await eventually(num_tokens, what="the first tokens")
            await eventually(lambda: num_tokens() > first, what="more tokens")
            response.close()
        await at_rest(client.gateway)
        assert num_tokens() == 0


async def test_removing_a_busy_worker_frees_its_bookings_and_its_stream_may_end() -> None:
    async with (
        MockFleet(1, engine=EngineSettings(speedup=4.0)) as fleet,
        serving(with_events(fleet.workers)) as client,
    ):
        asking = asyncio.ensure_future(client.stream(words("a"), max_tokens=40))
        await eventually(lambda: fleet.workers[0].stats()["active_requests"] == 1)
        await client.admin("/workers/w0", "DELETE")
        assert client.gateway.core.workers() == []
        _, events = await asking
        assert len(events) == 41
        client.gateway.core.check()


async def test_a_draining_worker_finishes_what_it_has_and_gets_nothing_new() -> None:
    async with (
        MockFleet(2, engine=EngineSettings(speedup=4.0)) as fleet,
        serving(with_events(fleet.workers)) as client,
    ):
        asking = asyncio.ensure_future(client.stream(words("a"), max_tokens=40))
        await eventually(lambda: any(worker.stats()["active_requests"] for worker in fleet.workers))
        holder = next(f"w{i}" for i, worker in enumerate(fleet.workers) if worker.stats()["active_requests"])
        status, answer = await client.admin(f"/workers/{holder}", "PUT", {"draining": True})
        assert (status, answer["worker"]["state"]) == (200, "draining")
        assert holder not in {(await client.complete(words("a")))[0] for _ in range(4)}
        worker, events = await asking
        assert (worker, len(events)) == (holder, 41)
        await client.admin(f"/workers/{holder}", "PUT", {"draining": False})
        assert row_of(client.gateway, holder)["state"] == "healthy"
        status, error = await client.admin(f"/workers/{holder}", "PUT", {"draining": "yes"})
        assert (status, error["error"]["param"]) == (400, "draining")


async def test_models_are_routed_to_those_who_serve_them() -> None:
    async with (
        MockFleet(1, engine=FAST, model="a", adapters=["a-lora"]) as left,
        MockFleet(1, engine=FAST, model="b") as right,
    ):
        workers = with_events([*left.workers, *right.workers])
        async with serving(workers) as client:
            _, listed = await client.get("/v1/models")
            assert [(m["id"], m.get("parent")) for m in listed["data"]] == [
                ("a", None),
                ("a-lora", "a"),
                ("b", None),
            ]
            for model, worker in (("a", "w0"), ("b", "w1"), ("a-lora", "w0"), ("b", "w1")):
                status, _, headers = await client.post(
                    "/v1/completions", {"model": model, "prompt": words("x"), "max_tokens": 1}
                )
                assert (status, headers["x-kvgate-worker"]) == (200, worker)
            status, error, _ = await client.post("/v1/completions", {"model": "c", "prompt": "x"})
            assert status == 404
            assert error["error"]["code"] == "model_not_found"
            assert "a, a-lora, b" in error["error"]["message"]
            status, error, _ = await client.post("/v1/completions", {"prompt": "x"})
            assert (status, error["error"]["param"]) == (400, "model")


async def test_the_policy_changes_while_requests_are_in_flight(mocks) -> None:
    async with serving(with_events(mocks)) as client:
        _, before = await client.admin("/policy")
        assert before["policy"] == "kv"
        running = [asyncio.ensure_future(client.stream(words("a"), max_tokens=30)) for _ in range(4)]
        status, after = await client.admin("/policy", "PUT", {"policy": "round_robin"})
        assert (status, after["policy"]) == (200, "round_robin")
        assert all(len(events) == 31 for _, events in await asyncio.gather(*running))
        assert [(await client.complete(words("a")))[0] for _ in range(4)].count("w0") == 2
        status, error = await client.admin(
            "/policy", "PUT", {"policy": "kv", "parameters": {"temperature": -1}}
        )
        assert status == 400
        assert "temperature" in error["error"]["message"]
        assert (await client.admin("/policy"))[1]["policy"] == "round_robin"


async def test_a_preview_decides_and_leaves_no_trace(mocks) -> None:
    async with serving(with_events(mocks)) as client:
        holder, _ = await client.complete(words("a"))
        await settled(client.gateway, *mocks)
        body = {"model": "mock", "prompt": words("a")}
        before = counted(client.gateway, "kvgate_dispatches_total")
        status, answer = await client.admin("/route?path=/v1/completions", "POST", body)
        assert (status, answer["decision"]["worker"]) == (200, holder)
        assert answer["decision"]["expected_cached_tokens"] > 0
        assert counted(client.gateway, "kvgate_dispatches_total") == before
        assert len((await client.admin("/explain"))[1]["decisions"]) == 1
        assert (await client.admin("/route?path=/v1/embeddings", "POST", body))[0] == 400


async def test_engine_metrics_carry_the_worker_and_gauges_are_read(mocks) -> None:
    async with serving(with_events(mocks)) as client:
        await client.complete(words("a"))
        for worker in ("w0", "w1"):  # each is looked at in its own time
            await eventually(
                lambda worker=worker: row_of(client.gateway, worker)["engine_gauges"]["running"] is not None
            )
        text = await client.admin_text("/engine_metrics")
        for worker in ("w0", "w1"):
            assert f'vllm:num_requests_running{{worker="{worker}"' in text
        assert text.count("# TYPE vllm:num_requests_running ") == 1


async def test_keys_are_asked_for_and_never_passed_on(mocks) -> None:
    options = {"api_key": ("client-key",), "worker_api_key": "worker-key"}
    async with serving(with_events(mocks), **options) as client:
        body = {"model": "mock", "prompt": "a", "max_tokens": 1}
        status, error, _ = await client.post("/v1/completions", body)
        assert (status, error["error"]["code"]) == (401, "invalid_api_key")
        assert (await client.post("/v1/completions", body, authorization="Bearer wrong"))[0] == 401
        assert (await client.post("/v1/completions", body, authorization="Bearer client-key"))[0] == 200
        assert (await client.post("/v1/completions", body, x_api_key="client-key"))[0] == 200
        assert (await client.get("/health"))[0] == 200


async def test_a_worker_is_shown_its_own_key_however_it_joined() -> None:
    answers = {
        "GET /v1/models": (200, b'{"data": [{"id": "mock"}]}'),
        "GET /health": (200, b""),
        "POST /v1/completions": (200, b"{}"),
    }
    async with FakeWorker(answers) as configured, FakeWorker(answers) as added, FakeWorker(answers) as other:
        workers = (
            WorkerConfig(url=configured.url.removeprefix("http://"), name="w0", api_key="of-w0"),
            WorkerConfig(url=other.url, name="w1"),
        )
        async with serving(workers, worker_api_key="common", policy="round_robin") as client:
            await client.admin("/workers", "POST", {"url": added.url, "name": "w2", "api_key": "of-w2"})
            assert {(await client.complete("a"))[0] for _ in range(3)} == {"w0", "w1", "w2"}
    for worker, key in ((configured, "of-w0"), (other, "common"), (added, "of-w2")):
        assert {headers.get("authorization") for _, _, headers, _ in worker.requests} == {f"Bearer {key}"}


async def test_administration_of_workers_is_not_on_the_public_port(mocks) -> None:
    async with serving(with_events(mocks)) as client:
        for path in (
            "/sleep",
            "/reset_prefix_cache",
            "/v1/load_lora_adapter",
            "/collective_rpc",
            "/mock/fault",
        ):
            status, error, _ = await client.post(path, {})
            assert (status, error["error"]["code"]) == (404, "unknown_path")


async def test_an_engines_error_comes_back_unchanged(mocks) -> None:
    body = {"model": "mock", "prompt": "a", "max_tokens": -3}
    async with serving(with_events(mocks)) as client:
        through = await client.post("/v1/completions", body)
        async with (
            aiohttp.ClientSession() as session,
            session.post(mocks[0].url + "/v1/completions", json=body) as direct,
        ):
            assert (through[0], through[1]) == (direct.status, await direct.json())
        assert through[0] == 400
