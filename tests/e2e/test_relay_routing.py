"""Which worker a request goes to, what is read of it on the way, and what the gateway answers itself."""

from __future__ import annotations

import asyncio
import logging

import orjson
import pytest

from indexer.blocks import Unit
from policies.types import ServedModel, Worker
from router.config import Settings
from router.core.prompt import Prompt
from tests.support.raw_worker import (
    END_OF_CHUNKS,
    STREAM_HEAD,
    RawWorker,
    WorkerSide,
    answering,
    chunk,
    event,
    json_answer,
)
from tests.support.relay import Answer, gateway, get, post

GOOD = answering(json_answer())


def code_of(answer: Answer) -> str:
    code: str = orjson.loads(answer.body)["error"]["code"]
    return code


async def test_models_have_their_own_workers() -> None:
    async with RawWorker(GOOD) as a, RawWorker(GOOD) as b, gateway(a, b, models=[["ma"], ["mb"]]) as running:
        for model, worker in (("ma", a), ("mb", b), ("ma", a)):
            answer = await running.ask(post(b'{"prompt":"p","model":"%s"}' % model.encode()))
            assert answer.value("x-kvgate-worker") == worker.id
        form = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nmb\r\n--x--\r\n'
        extra = "Content-Type: multipart/form-data; boundary=x\r\n"
        answer = await running.ask(post(form, "/v1/audio/transcriptions", extra=extra))
        assert answer.value("x-kvgate-worker") == b.id


async def test_a_session_stays_on_its_worker_by_whichever_name_it_comes() -> None:
    names = [
        ("X-Session-ID: one\r\n", b'{"prompt":"a"}'),
        ("", b'{"prompt":"b","session_id":"one"}'),
        ("X-User-ID: u\r\n", b'{"prompt":"c","metadata":{"session_id":"one"}}'),
        ("", b'{"prompt":"d","user":"one"}'),
    ]
    async with RawWorker(GOOD) as a, RawWorker(GOOD) as b, gateway(a, b, policy="session") as running:
        answers = [await running.ask(post(body, extra=extra)) for extra, body in names]
        assert len({answer.value("x-kvgate-worker") for answer in answers}) == 1
        others = [await running.ask(post(b'{"prompt":"a","user":"u%d"}' % number)) for number in range(20)]
        assert {answer.value("x-kvgate-worker") for answer in others} == {a.id, b.id}


async def test_streams_teach_the_latency_policy() -> None:
    tokens = b"".join(chunk(event(f"t{number}")) for number in range(3))
    stream = answering(STREAM_HEAD + tokens + END_OF_CHUNKS)
    async with RawWorker(stream) as a, RawWorker(stream) as b, gateway(a, b, policy="latency") as running:
        for _ in range(6):
            assert (await running.ask(post(b'{"prompt":"p","stream":true}'))).status == 200
        times = running.core.decisions()[0].candidates.times
        assert times is not None
        assert times.mean_output_tokens < 195, "five answers of three tokens"
        assert list(times.wait_ms) == list(times.resident_tokens) == [0, 0], "one after the other"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b'{"prompt":"p"}', 400, "model_required"),
        (b'{"prompt":"p","model":"mc"}', 404, "model_not_found"),
        (b'{"prompt":"p","model":5}', 400, "invalid_type"),
        (b'{"model":"ma"}', 400, "missing_field"),
        (b'{"prompt":7,"model":"ma"}', 400, "invalid_type"),
        (b'{"prompt":', 400, "invalid_json"),
        (b"[]", 400, "invalid_json"),
        (b"", 400, "invalid_json"),
        (b'{"prompt":"\xff","model":', 400, "invalid_json"),
    ],
)
async def test_what_routing_needs_is_judged(body: bytes, status: int, code: str) -> None:
    async with RawWorker(GOOD) as a, RawWorker(GOOD) as b, gateway(a, b, models=[["ma"], ["mb"]]) as running:
        answer = await running.ask(post(body))
        assert (answer.status, code_of(answer)) == (status, code)
        assert answer.value("x-request-id")
        assert a.requests == b.requests == []
        assert running.counted("kvgate_requests_total", outcome="rejected") == 1


async def test_what_routing_does_not_need_is_not_read() -> None:
    async with RawWorker(GOOD) as worker, gateway(worker) as running:
        assert (await running.ask(post(b"this is no JSON \xff"))).status == 200
        assert worker.requests[0].body == b"this is no JSON \xff"


async def test_unknown_model_is_looked_for_once_more() -> None:
    async with RawWorker(GOOD) as a, RawWorker(GOOD) as b, gateway(a, b, models=[["ma"], ["mb"]]) as running:

        async def finds(model: str) -> None:
            served = (ServedModel("ma"), ServedModel(model, parent="ma"))
            running.core.reconcile([Worker(id=a.id, url=a.url, models=served)], now=0.0)

        request = post(b'{"prompt":"p","model":"adapter"}')
        answer = await running.ask(request)
        assert answer.status == 404
        assert "ma, mb" in orjson.loads(answer.body)["error"]["message"]
        assert running.fleet.reprobed == ["adapter"]
        running.fleet.pending = True
        assert (await running.ask(request)).status == 503
        running.fleet.reprobe = finds
        assert (await running.ask(request)).status == 200


# Stored responses


async def test_stored_responses_go_to_their_worker() -> None:
    def storing(name: str) -> bytes:
        return json_answer(b'{"id":"resp_%s","object":"response"}' % name.encode())

    async with (
        RawWorker(answering(storing("a"))) as a,
        RawWorker(answering(storing("b"))) as b,
        gateway(a, b, models=[["ma"], ["mb"]]) as running,
    ):
        for model in (b"ma", b"mb"):
            await running.ask(post(b'{"input":"i","model":"%s"}' % model, "/v1/responses"))
        for name, worker in (("a", a), ("b", b), ("a", a)):
            path = f"/v1/responses/resp_{name}"
            assert (await running.ask(get(path))).value("x-kvgate-worker") == worker.id
            assert (await running.ask(post(b"", f"{path}/cancel"))).value("x-kvgate-worker") == worker.id
            following = b'{"input":"i","model":"m%s","previous_response_id":"resp_%s"}' % (
                (name.encode(),) * 2
            )
            assert (await running.ask(post(following, "/v1/responses"))).value("x-kvgate-worker") == worker.id
        assert (await running.ask(get("/v1/responses/resp_unknown"))).status == 200


async def test_stored_stream_is_known_while_it_runs() -> None:
    release = asyncio.Event()
    created = b'event: response.created\ndata: {"response":{"id":"resp_1"}}\n\n'

    async def script(side: WorkerSide) -> None:
        if side.request.request_line.startswith(b"GET"):
            await side.send(json_answer())
            return
        await side.send(STREAM_HEAD + chunk(created))
        await release.wait()
        await side.send(END_OF_CHUNKS)

    async with (
        RawWorker(script) as a,
        RawWorker(script) as b,
        gateway(a, b) as running,
        running.client() as client,
    ):
        await client.send(post(b'{"input":"i"}', "/v1/responses"))
        head = await client.reader.readuntil(created)
        for _ in range(3):
            answer = await running.ask(get("/v1/responses/resp_1"))
            assert f"x-kvgate-worker: {answer.value('x-kvgate-worker')}\r\n".encode() in head
        release.set()
        await client.reader.readuntil(END_OF_CHUNKS)


# What a prompt-aware policy learns


class OneBlock:
    """Every prompt is the same block of tokens."""

    def __init__(self, running_core: list[object]) -> None:
        self.cores = running_core

    async def prompt(self, *_: object) -> Prompt:
        (core,) = self.cores
        chains = {space: [1234567] for space in core.hash_spaces("m")}
        return Prompt(num_tokens=16, unit=Unit.TOKENS, chains=chains, exact=True)


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_usage_reaches_the_core(is_streamed: bool) -> None:
    usage = b'{"usage":{"prompt_tokens":17,"prompt_tokens_details":{"cached_tokens":16}}}'
    stream = STREAM_HEAD + chunk(event("a")) + chunk(b"data: " + usage + b"\n\n") + END_OF_CHUNKS
    cores: list[object] = []
    tokens = OneBlock(cores)
    script = answering(stream if is_streamed else json_answer(usage))
    async with RawWorker(script) as worker, gateway(worker, policy="kv", tokens=tokens) as running:
        cores.append(running.core)
        assert (await running.ask(post(b'{"prompt":"p","stream":true}'))).status == 200
        assert running.counted("kvgate_reported_cached_tokens_total", worker=worker.id) == 16
        assert running.counted("kvgate_ttft_seconds_count", worker=worker.id) == 1


async def test_time_to_first_token_is_that_of_generated_answers() -> None:
    refusal = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}"
    async with RawWorker(GOOD) as worker, gateway(worker) as running:
        await running.ask(post(path="/v1/embeddings"))
        await running.ask(get("/version"))
        worker.script = answering(refusal)
        await running.ask(post())
        assert running.counted("kvgate_ttft_seconds_count") == 0
        worker.script = GOOD
        await running.ask(post())
        assert running.counted("kvgate_ttft_seconds_count", worker=worker.id) == 1


# Answers of the gateway's own


async def test_own_answers() -> None:
    async with gateway() as running, running.client() as client:
        running.fleet.entries = [{"id": "org/m", "object": "model"}]
        for path in ("/health", "/healthz", "/livez", "/liveness", "/readyz", "/readiness"):
            await client.send(get(path))
            assert (await client.answer()).status == 200
        await client.send(get("/v1/models"))
        assert orjson.loads((await client.answer()).body) == {"object": "list", "data": running.fleet.entries}
        await client.send(get("/v1/models/org/m"))
        assert orjson.loads((await client.answer()).body) == running.fleet.entries[0]
        await client.send(get("/v1/models/other"))
        assert (await client.answer()).status == 404
        await client.send(get("/v1/models", method="HEAD"))
        assert int((await client.answer(without_body=True)).value("content-length") or 0) > 0
        running.fleet.is_ready = lambda: False
        await client.send(get("/readyz"))
        assert (await client.answer()).status == 503


@pytest.mark.parametrize("form", ["text", "json"])
async def test_access_log(form: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kvgate.access")
    settings = Settings(policy="round_robin", access_log=form)
    async with RawWorker(GOOD) as worker, gateway(worker, settings=settings) as running:
        await running.ask(post(extra="X-Request-Id: mine\r\n"))
        (record,) = [record for record in caplog.records if record.name == "kvgate.access"]
        text = record.getMessage()
        assert "mine" in text
        assert worker.id in text
        if form == "json":
            assert orjson.loads(text)["status"] == 200


@pytest.mark.parametrize(
    ("data", "method", "path", "status"),
    [
        (get("/v1/nothing", extra="X-Request-Id: mine\r\n"), "GET", "/v1/nothing", 404),
        (get("/v1/chat/completions", extra="X-Request-Id: mine\r\n"), "GET", "/v1/chat/completions", 405),
        (post(b"x" * 2000, extra="X-Request-Id: mine\r\n"), "POST", "/v1/completions", 413),
        (get("/" + "x" * 9000), "", "", 414),
    ],
)
async def test_what_its_head_refuses_stands_in_the_access_log_too(
    data: bytes, method: str, path: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kvgate.access")
    settings = Settings(policy="round_robin", access_log="json", max_body=1000)
    async with RawWorker(GOOD) as worker, gateway(worker, settings=settings) as running:
        assert (await running.ask(data)).status == status
        (line,) = [orjson.loads(r.getMessage()) for r in caplog.records if r.name == "kvgate.access"]
        expected = {"method": method, "path": path, "status": status, "outcome": "rejected", "attempts": 0}
        assert {name: line[name] for name in expected} == expected
        await running.ask(post())
        *_, handled = [orjson.loads(r.getMessage()) for r in caplog.records if r.name == "kvgate.access"]
        assert list(handled) == list(line)


async def test_defect_of_the_gateway_is_answered_and_does_not_stop_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken:
        async def prompt(self, *_: object) -> None:
            raise ZeroDivisionError

    async with RawWorker(GOOD) as worker, gateway(worker, policy="kv", tokens=Broken()) as running:
        answer = await running.ask(post())
        assert (answer.status, code_of(answer)) == (500, "internal_error")
        assert any(record.exc_info for record in caplog.records)
        assert (await running.ask(get("/health"))).status == 200
