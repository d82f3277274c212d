"""A mock fleet over real sockets: what it answers, what it publishes, and every fault."""

from __future__ import annotations

import asyncio
import signal
import sys

import aiohttp
import msgspec
import openai
import pytest
import zmq
import zmq.asyncio

from indexer.events import AllBlocksCleared, BlockRemoved, BlockStored
from loadgen.engine import EngineSettings
from loadgen.mock_events import REPLAY_BUFFER_BATCHES
from loadgen.mock_worker import MockFleet
from loadgen.wire import END_OF_REPLAY, RELEASES, Layout
from router.engines.metrics_text import find_samples
from tests.support.layouts import decoded
from tests.support.waiting import eventually

FAST = EngineSettings(speedup=200.0)
PROMPT = "baba bebe bibi bobo bubu " * 20
CHAT = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 5}


@pytest.fixture
async def http():
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def fleet():
    async with MockFleet(2, engine=FAST) as fleet:
        yield fleet


@pytest.fixture
async def worker(fleet):
    return fleet.workers[0]


async def post(http, worker, path, body, **options):
    async with http.post(worker.url + path, json=body, **options) as response:
        return response.status, await response.json()


async def read_stream(http, worker, path, body):
    async with http.post(worker.url + path, json=body | {"stream": True}) as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        return [line.removeprefix(b"data: ") for line in (await response.read()).split(b"\n\n") if line]


class Listener:
    """A subscriber whose subscription is known to have arrived, and a replay client."""

    def __init__(self, http, worker, layout=Layout.MAPS):
        self._layout = layout
        self._http = http
        self._worker = worker
        self._context = zmq.asyncio.Context()
        self._sub = self._context.socket(zmq.SUB)
        self._sub.subscribe(b"")
        self.num_before = 0
        """Messages that the worker had published when listening began."""

    async def __aenter__(self):
        self._sub.connect(self._worker.events_endpoint)
        while not await self._sub.poll(10):
            await self._provoke_message()
        while (await self.next())[0] + 1 < self._worker.num_event_messages:
            pass
        self.num_before = self._worker.num_event_messages
        return self

    async def _provoke_message(self):
        prompt = [20_000 + self._worker.num_event_messages] * 20
        await post(self._http, self._worker, "/v1/completions", {"prompt": prompt, "max_tokens": 1})

    async def __aexit__(self, *_error):
        self._context.destroy(linger=0)

    async def next(self):
        """(sequence, batch) of the next message."""
        _topic, sequence, payload = await asyncio.wait_for(self._sub.recv_multipart(), 5)
        return int.from_bytes(sequence, "big"), decoded(payload, self._layout)

    async def replay(self, start):
        """All frames up to the end marker."""
        dealer = self._context.socket(zmq.DEALER)
        dealer.connect(self._worker.replay_endpoint)
        await dealer.send_multipart([b"", start.to_bytes(8, "big")])
        answers = []
        while END_OF_REPLAY not in (frames := await asyncio.wait_for(dealer.recv_multipart(), 5)):
            answers.append(frames)
        return answers


async def test_openai_client_chat_streaming_and_not(worker):
    async with openai.AsyncOpenAI(base_url=f"{worker.url}/v1", api_key="none", max_retries=0) as client:
        whole = await client.chat.completions.create(model="mock", **CHAT)
        stream = await client.chat.completions.create(
            model="mock", stream=True, stream_options={"include_usage": True}, **CHAT
        )
        chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == chunks[-1].usage.completion_tokens == 5
    assert whole.usage.prompt_tokens_details.cached_tokens == 0
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens == (whole.usage.prompt_tokens - 1) // 16 * 16


async def test_openai_client_responses_streaming_and_not(worker):
    async with openai.AsyncOpenAI(base_url=f"{worker.url}/v1", api_key="none", max_retries=0) as client:
        whole = await client.responses.create(model="mock", input=PROMPT, max_output_tokens=4)
        stream = await client.responses.create(model="mock", input=PROMPT, max_output_tokens=4, stream=True)
        events = [event async for event in stream]
    assert [event.type for event in events].count("response.output_text.delta") == 4
    assert events[-1].response.output_text == whole.output_text
    assert events[-1].response.usage.input_tokens_details.cached_tokens > 0


async def test_messages(http, worker):
    body = {"model": "mock", "max_tokens": 3, "messages": [{"role": "user", "content": PROMPT}]}
    status, whole = await post(http, worker, "/v1/messages", body)
    assert (status, whole["usage"]["output_tokens"]) == (200, 3)
    events = await read_stream(http, worker, "/v1/messages", body)
    assert events[0].startswith(b"event: message_start\n")
    assert events[-1].startswith(b"event: message_stop\n")


@pytest.mark.parametrize("prompt", [PROMPT, [5, 6, 7, 8]])
async def test_tokenize_agrees_with_what_was_computed(http, worker, prompt):
    _, answer = await post(http, worker, "/v1/completions", {"model": "mock", "prompt": prompt})
    assert answer["usage"]["completion_tokens"] == 16, "the default"
    assert answer["choices"][0]["finish_reason"] == "stop"
    if isinstance(prompt, str):
        _, told = await post(http, worker, "/tokenize", {"model": "mock", "prompt": prompt})
        assert told["count"] == len(told["tokens"]) == answer["usage"]["prompt_tokens"]
    _, told = await post(http, worker, "/tokenize", {"messages": CHAT["messages"]})
    _, answer = await post(http, worker, "/v1/chat/completions", CHAT)
    assert told["count"] == answer["usage"]["prompt_tokens"]


async def test_models_version_health_and_embeddings(http):
    async with MockFleet(1, engine=FAST, model="base", adapters=["lora"], layout=Layout.ARRAYS) as fleet:
        worker = fleet.workers[0]
        async with http.get(worker.url + "/v1/models") as response:
            models = (await response.json())["data"]
        assert [(model["id"], model["parent"]) for model in models] == [("base", None), ("lora", "base")]
        assert models[0]["max_model_len"] == 8191 * 16
        async with http.get(worker.url + "/version") as response:
            assert await response.json() == {"version": "0.23.0"}
        async with http.get(worker.url + "/health") as response:
            assert (response.status, await response.read()) == (200, b"")
        _, answer = await post(http, worker, "/v1/embeddings", {"model": "lora", "input": ["a", "b"]})
        assert [item["index"] for item in answer["data"]] == [0, 1]
        _, text = await post(http, worker, "/detokenize", {"tokens": [16, 17]})
        assert text == {"prompt": " baba babe"}
        _, answer = await post(http, worker, "/v1/chat/completions", CHAT)
        assert answer["usage"]["prompt_tokens_details"] is None, "0.23 told nothing on a miss"


async def test_metrics_have_what_routers_read(http, worker):
    for _ in range(2):
        await post(http, worker, "/v1/chat/completions", CHAT)
    async with http.get(worker.url + "/metrics") as response:
        text = await response.text()
    assert 'block_size="16"' in text
    assert 'num_gpu_blocks="8192"' in text
    assert 'vllm:generation_tokens_total{engine="0",model_name="mock"} 10.0' in text
    assert "process_start_time_seconds 1" in text
    hits = next(line for line in text.splitlines() if line.startswith("vllm:prefix_cache_hits_total{"))
    assert float(hits.split()[-1]) > 0
    for name in (b"vllm:num_requests_running", b"vllm:num_requests_waiting", b"vllm:kv_cache_usage_perc"):
        assert [value for _labels, value in find_samples(text.encode(), name)] == [0.0]


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/v1/chat/completions", CHAT | {"model": "other"}, 404, "model"),
        ("/tokenize", {"model": "other", "prompt": "x"}, 404, "model"),
        ("/v1/completions", {"prompt": [7] * 131_056}, 400, "input_tokens"),
        ("/v1/completions", {"prompt": "x", "max_tokens": 0}, 400, "max_tokens"),
        ("/v1/completions", {"prompt": []}, 400, "prompt"),
        ("/v1/completions", {"prompt": 5}, 400, "body"),
    ],
)
async def test_errors_have_the_shape_of_the_engine(http, worker, path, body, status, param):
    answered, error = await post(http, worker, path, body)
    assert (answered, error["error"]["code"], error["error"]["param"]) == (status, status, param)


async def test_unknown_paths_and_methods(http, worker):
    async with http.get(worker.url + "/v1/completions") as response:
        assert (response.status, await response.json()) == (405, {"detail": "Method Not Allowed"})
    async with http.get(worker.url + "/v1/nothing") as response:
        assert response.status == 404


RESET_PATHS = {"vllm": "/reset_prefix_cache", "sglang": "/flush_cache"}


@pytest.mark.parametrize("layout", Layout)
async def test_events_and_replay(http, layout):
    async with MockFleet(1, engine=FAST, layout=layout, topic="kv") as fleet:
        worker = fleet.workers[0]
        async with Listener(http, worker, layout) as listener:
            await post(http, worker, "/v1/chat/completions", CHAT)
            sequence, batch = await listener.next()
            assert sequence == listener.num_before
            stored = [token_id for event in batch.events for token_id in event.token_ids]
            # One event for each page, or one for all.
            assert len(batch.events) == (1 if RELEASES[layout].engine == "vllm" else len(stored) // 16)
            _, told = await post(http, worker, "/tokenize", {"messages": CHAT["messages"]})
            assert stored == told["tokens"][: len(stored)] != []
            async with http.post(worker.url + RESET_PATHS[RELEASES[layout].engine]) as response:
                assert response.status == 200
            await post(http, worker, "/v1/completions", {"prompt": [3] * 16, "max_tokens": 1})
            answers = await listener.replay(1)
            numbers = [int.from_bytes(frames[-2], "big") for frames in answers]
            assert numbers == list(range(1, worker.num_event_messages))
            assert answers[0][1:-2] == ([b"kv"] if RELEASES[layout].replays_topic else [])
            told_at_last = [event for each in answers for event in decoded(each[-1], layout).events]
            assert AllBlocksCleared() in told_at_last
            assert await listener.replay(worker.num_event_messages) == []


async def test_a_replay_reaches_back_over_the_buffer_only(http, worker):
    async with Listener(http, worker) as listener:
        for number in range(REPLAY_BUFFER_BATCHES):
            worker.publish([BlockRemoved([number])])
        numbers = [int.from_bytes(frames[-2], "big") for frames in await listener.replay(0)]
    newest = listener.num_before + REPLAY_BUFFER_BATCHES
    assert numbers == list(range(listener.num_before, newest)), "all that is left, without a gap"


async def test_evictions_are_published(http):
    small = EngineSettings(speedup=200.0, num_blocks=33)
    async with MockFleet(1, engine=small) as fleet, Listener(http, fleet.workers[0]) as listener:
        events = []
        for number in range(3):
            await post(
                http, fleet.workers[0], "/v1/completions", {"prompt": [number + 5] * 320, "max_tokens": 1}
            )
            events += (await listener.next())[1].events
        assert {type(event) for event in events} == {BlockStored, BlockRemoved}


async def test_a_client_that_leaves_aborts_its_request(http):
    async with MockFleet(1, engine=EngineSettings()) as fleet:
        worker = fleet.workers[0]
        for stream in (True, False):
            body = CHAT | {"max_tokens": 5000, "stream": stream}
            asking = asyncio.ensure_future(read_some(http, worker, body))
            await eventually(lambda: worker.stats()["active_requests"] == 1)
            asking.cancel()
            await asyncio.wait([asking])
            await eventually(lambda: worker.stats()["active_requests"] == 0)
        assert worker.stats()["aborted"] == 2


async def read_some(http, worker, body):
    async with http.post(worker.url + "/v1/chat/completions", json=body) as response:
        await response.read()


async def test_the_head_of_a_stream_comes_before_the_first_token(http):
    async with MockFleet(1, engine=EngineSettings()) as fleet:
        worker = fleet.workers[0]
        await worker.fault("slow", factor=1000.0)
        async with http.post(worker.url + "/v1/chat/completions", json=CHAT | {"stream": True}) as response:
            assert response.status == 200
            assert worker.stats()["generation_tokens"] == 0


async def set_fault(http, asked, /, **body):
    status, answer = await post(http, asked, "/mock/fault", body)
    assert status == 200, answer
    return answer


async def test_die_and_come_back_as_somebody_new(http, fleet):
    worker, other = fleet.workers
    await post(http, worker, "/v1/chat/completions", CHAT)
    started = worker.identity.start_time
    asking = asyncio.ensure_future(read_some(http, worker, CHAT | {"max_tokens": 100_000, "stream": True}))
    await eventually(lambda: worker.stats()["active_requests"] == 1)
    await set_fault(http, worker, fault="die")
    with pytest.raises(aiohttp.ClientError):
        await asking
    with pytest.raises(aiohttp.ClientError):
        await post(http, worker, "/v1/chat/completions", CHAT)
    assert not worker.is_alive
    await set_fault(http, other, fault="clear", worker=0)
    status, answer = await post(http, worker, "/v1/chat/completions", CHAT)
    assert (status, answer["usage"]["prompt_tokens_details"]["cached_tokens"]) == (200, 0)
    assert worker.identity.start_time > started
    assert worker.num_event_messages <= 2, "numbers start again"


async def test_restart_keeps_ports(http, worker):
    endpoints = (worker.url, worker.events_endpoint, worker.replay_endpoint)
    await post(http, worker, "/v1/chat/completions", CHAT)
    await set_fault(http, worker, fault="restart")
    assert (worker.url, worker.events_endpoint, worker.replay_endpoint) == endpoints
    assert worker.stats()["incarnation"] == 2
    assert worker.stats()["cached_blocks"] == 0
    assert (await post(http, worker, "/v1/chat/completions", CHAT))[0] == 200


async def test_hang(http, worker):
    await set_fault(http, worker, fault="hang")
    with pytest.raises(TimeoutError):
        await post(http, worker, "/v1/chat/completions", CHAT, timeout=aiohttp.ClientTimeout(total=0.1))
    asking = asyncio.ensure_future(post(http, worker, "/v1/chat/completions", CHAT))
    await set_fault(http, worker, fault="clear")
    assert (await asking)[0] == 200


async def test_refuse(http, worker):
    await set_fault(http, worker, fault="refuse")
    async with http.get(worker.url + "/health") as response:
        assert response.status == 503
    await set_fault(http, worker, fault="clear")
    async with http.get(worker.url + "/health") as response:
        assert response.status == 200


async def test_dropped_events_are_numbered_and_can_be_replayed(http, worker):
    async with Listener(http, worker) as listener:
        await set_fault(http, worker, fault="drop_events", count=2)
        for number in range(3):
            await post(http, worker, "/v1/completions", {"prompt": [number + 5] * 20, "max_tokens": 1})
        sequence, _batch = await listener.next()
        assert sequence == listener.num_before + 2
        assert len(await listener.replay(listener.num_before)) == 3
        assert worker.stats()["dropped_event_messages"] == 2
        await set_fault(http, worker, fault="drop_events")
        await post(http, worker, "/v1/completions", {"prompt": [9] * 20, "max_tokens": 1})
        await set_fault(http, worker, fault="clear")
        await post(http, worker, "/v1/completions", {"prompt": [10] * 20, "max_tokens": 1})
        assert (await listener.next())[0] == listener.num_before + 4


async def test_error_mid_stream(http, worker):
    await set_fault(http, worker, fault="error_mid_stream", after_tokens=2)
    async with http.post(worker.url + "/v1/chat/completions", json=CHAT | {"stream": True}) as response:
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
    await eventually(lambda: worker.stats()["active_requests"] == 0)
    await set_fault(http, worker, fault="clear")
    assert (await read_stream(http, worker, "/v1/chat/completions", CHAT))[-1] == b"[DONE]"


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ({"fault": "explode"}, "known: die"),
        ({"fault": "die", "worker": 2}, "below 2"),
        ({"fault": "die", "workers": 1}, "workers"),
        ({}, "fault"),
    ],
)
async def test_mistakes_in_a_fault_are_told(http, worker, body, what):
    status, answer = await post(http, worker, "/mock/fault", body)
    assert status == 400
    assert what in answer["error"]["message"]


async def test_many_streams_at_once_all_end(http, fleet):
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as many:
        streams = [
            read_stream(many, fleet.workers[i % 2], "/v1/chat/completions", CHAT | {"max_tokens": 30})
            for i in range(100)
        ]
        for events in await asyncio.gather(*streams):
            assert len(events) == 1 + 30 + 1
    for worker in fleet.workers:
        assert worker.stats()["finished"] == 50
        assert worker.stats()["lag_seconds_max"] >= worker.stats()["lag_seconds_mean"] > 0


async def test_the_command_is_ready_when_it_says_so_and_ends_on_sigterm(http):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "loadgen.mock_worker", "--port", "0", "--events-port", "0",
        "--num-workers", "1", "--model", "m", stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        line = (await asyncio.wait_for(process.stdout.readline(), 20)).decode()
        url = line.split()[4].rstrip(",")
        async with http.get(f"{url}/v1/models") as response:
            assert msgspec.json.decode(await response.read())["data"][0]["id"] == "m"
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 10) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def test_it_runs_on_the_standard_event_loop_too():
    async def scenario():
        async with MockFleet(1, engine=FAST) as fleet, aiohttp.ClientSession() as session:
            worker = fleet.workers[0]
            events = await read_stream(session, worker, "/v1/chat/completions", CHAT)
            await worker.fault("restart")
            status, _ = await post(session, worker, "/v1/chat/completions", CHAT)
            return events[-1], status

    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        assert runner.run(scenario()) == (b"[DONE]", 200)
