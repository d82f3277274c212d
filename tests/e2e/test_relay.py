"""Requests and answers through the gateway: bytes unchanged, framing right, headers as they must be."""

from __future__ import annotations

import gzip
import hashlib
import random
from pathlib import Path

import pytest

from router.config import Settings
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
from tests.support.relay import gateway, get, post

TOKENS = [event(f"t{i}") for i in range(5)]
JSON = json_answer()
STREAM = STREAM_HEAD + b"".join(map(chunk, TOKENS)) + END_OF_CHUNKS


async def test_request_and_answer_pass_unchanged() -> None:
    body = b'{"model": "m", "prompt": "p", "unknown": 123456789012345678901234567890, "model": "m"}'
    async with RawWorker(answering(json_answer(b'{"a": 1}'))) as worker, gateway(worker) as running:
        answer = await running.ask(post(body, "/v1/completions?beta=true", extra="X-Own: 1\r\n"))
        assert answer.status == 200
        assert answer.body == b'{"a": 1}'
        assert answer.value("x-kvgate-worker") == worker.id
        (request,) = worker.requests
        assert request.request_line == b"POST /v1/completions?beta=true HTTP/1.1"
        assert request.body == body
        assert request.values("x-own") == [b"1"]
        assert request.values("host") == [worker.id.encode()]


async def test_chunked_answer_passes_with_its_framing() -> None:
    async with RawWorker(answering(STREAM)) as worker, gateway(worker) as running:
        answer = await running.ask(post())
        assert answer.raw_body == STREAM.removeprefix(STREAM_HEAD)
        assert answer.value("content-type") == "text/event-stream; charset=utf-8"


@pytest.mark.parametrize("body_bytes", [0, 1, 65_535, 65_536, 65_537, 3_000_000])
async def test_lengths_around_the_buffers(body_bytes: int) -> None:
    body = random.Random(body_bytes).randbytes(body_bytes)
    async with RawWorker(answering(json_answer(body))) as worker, gateway(worker) as running:
        answer = await running.ask(post(body))
        assert worker.requests[0].body == body
        assert answer.body == body


async def test_largest_body_passes_byte_for_byte() -> None:
    size = Settings().max_body
    body = random.Random(1).randbytes(1 << 16) * (size >> 16)

    async def script(side: WorkerSide) -> None:
        await side.send(json_answer(hashlib.sha256(side.request.body).hexdigest().encode()))

    async with RawWorker(script) as worker, gateway(worker) as running:
        answer = await running.ask(post(body))
        assert answer.body == hashlib.sha256(body).hexdigest().encode()


async def test_largest_answer_passes_byte_for_byte() -> None:
    body = random.Random(2).randbytes(1 << 16) * 1024
    async with RawWorker(answering(json_answer(body))) as worker, gateway(worker) as running:
        assert (await running.ask(post())).body == body


async def test_compressed_answer_stays_compressed() -> None:
    body = gzip.compress(b'{"usage":{"prompt_tokens":1}}' * 100)
    answer_bytes = json_answer(body, extra=b"content-encoding: gzip\r\n")
    async with RawWorker(answering(answer_bytes)) as worker, gateway(worker) as running:
        answer = await running.ask(post())
        assert answer.body == body
        assert answer.value("content-encoding") == "gzip"
        assert answer.value("content-length") == str(len(body))


async def test_recorded_engine_stream_passes_unchanged() -> None:
    data = (Path(__file__).parents[1] / "fixtures/http/vllm-0.32.0/stream_chat.raw").read_bytes()
    async with RawWorker(answering(data)) as worker, gateway(worker) as running:
        answer = await running.ask(post(path="/v1/chat/completions"))
        assert answer.raw_body == data.partition(b"\r\n\r\n")[2]
        assert answer.values("server") == ["uvicorn"]
        assert answer.value("connection") is None


async def test_chunked_request_reaches_the_worker_with_a_length() -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with RawWorker(answering(json_answer())) as worker, gateway(worker) as running:
        answer = await running.ask(head + b"5;ext=1\r\nhello\r\n1\r\n!\r\n0\r\nX-Trailer: 1\r\n\r\n")
        assert answer.status == 200
        assert worker.requests[0].body == b"hello!"
        assert worker.requests[0].values("content-length") == [b"6"]
        assert worker.requests[0].values("x-trailer") == []


async def test_answer_that_ends_with_the_connection_is_chunked_for_the_client() -> None:
    async def script(side: WorkerSide) -> None:
        await side.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\nsome text")
        side.close()

    async with RawWorker(script) as worker, gateway(worker) as running, running.client() as client:
        for _ in range(2):
            await client.send(post())
            answer = await client.answer()
            assert answer.body == b"some text"
            assert answer.value("transfer-encoding") == "chunked"


async def test_http10_client_gets_a_body_without_chunks() -> None:
    async with RawWorker(answering(STREAM)) as worker, gateway(worker) as running, running.client() as client:
        await client.send(post().replace(b"HTTP/1.1", b"HTTP/1.0"))
        answer = await client.answer()
        assert answer.body == b"".join(TOKENS)
        assert answer.value("transfer-encoding") is None
        assert answer.value("connection") == "close"


async def test_http10_client_may_keep_its_connection() -> None:
    request = post(extra="Connection: keep-alive\r\n").replace(b"HTTP/1.1", b"HTTP/1.0")
    async with RawWorker(answering(JSON)) as worker, gateway(worker) as running, running.client() as client:
        for _ in range(2):
            await client.send(request)
            answer = await client.answer()
            assert answer.value("connection") == "keep-alive"


async def test_head_is_answered_by_the_worker_without_a_body() -> None:
    async def script(side: WorkerSide) -> None:
        await side.send(b"HTTP/1.1 200 OK\r\ncontent-length: 17\r\n\r\n")

    async with RawWorker(script) as worker, gateway(worker) as running, running.client() as client:
        for _ in range(2):
            await client.send(get("/version", method="HEAD"))
            answer = await client.answer(without_body=True)
            assert answer.value("content-length") == "17"
        assert [request.request_line for request in worker.requests] == [b"HEAD /version HTTP/1.1"] * 2


@pytest.mark.parametrize("status", [204, 304])
async def test_answers_without_a_body(status: int) -> None:
    data = b"HTTP/1.1 %d Nothing\r\nx-a: b\r\n\r\n" % status
    async with RawWorker(answering(data)) as worker, gateway(worker) as running, running.client() as client:
        for _ in range(2):
            await client.send(post())
            assert (await client.answer()).status == status
        assert len(worker.sides) == 1


async def test_interim_answers_of_the_worker_are_dropped() -> None:
    data = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + STREAM
    async with RawWorker(answering(data)) as worker, gateway(worker) as running:
        answer = await running.ask(post())
        assert answer.status == 200
        assert answer.raw_body == STREAM.removeprefix(STREAM_HEAD)
        assert answer.value("link") is None


async def test_hop_by_hop_headers_stay_on_their_hop() -> None:
    answer_bytes = json_answer(
        extra=b"Connection: X-Hop, Content-Type\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nX-End: 2\r\n"
    )
    extra = (
        "Connection: x-mine, keep-alive, content-type\r\nX-Mine: 1\r\nTE: trailers\r\nKeep-Alive: 5\r\n"
        "Proxy-Authorization: p\r\nExpect: 100-continue\r\nContent-Type: application/json\r\nX-End: 3\r\n"
    )
    async with (
        RawWorker(answering(answer_bytes)) as worker,
        gateway(worker) as running,
        running.client() as client,
    ):
        await client.send(post(extra=extra))
        assert (await client.answer()).status == 100
        answer = await client.answer()
        (request,) = worker.requests
        for name in ("connection", "x-mine", "te", "proxy-authorization", "keep-alive", "expect"):
            assert request.values(name) == [], name
        assert request.values("x-end") == [b"3"]
        assert request.values("content-type") == [b"application/json"]
        for name in ("connection", "x-hop", "keep-alive"):
            assert answer.values(name) == [], name
        assert answer.value("x-end") == "2"
        assert answer.value("content-type") == "application/json"


async def test_a_worker_cannot_have_the_length_of_its_answer_dropped() -> None:
    data = json_answer(extra=b"Connection: Content-Length\r\n")
    async with RawWorker(answering(data)) as worker, gateway(worker) as running:
        answer = await running.ask(post())
        assert answer.values("content-length") == ["11"]
        assert answer.body == b'{"ok":true}'


async def test_request_id_is_passed_on_or_made() -> None:
    answer_bytes = json_answer(extra=b"x-request-id: of the worker\r\n")
    async with RawWorker(answering(answer_bytes)) as worker, gateway(worker) as running:
        passed = await running.ask(post(extra="X-Request-Id: mine\r\n"))
        made = await running.ask(post())
        assert passed.values("x-request-id") == ["mine"]
        assert worker.requests[0].values("x-request-id") == [b"mine"]
        (made_id,) = made.values("x-request-id")
        assert worker.requests[1].values("x-request-id") == [made_id.encode()]
        assert made_id != "of the worker"


async def test_pipelined_requests_are_answered_in_order() -> None:
    async def script(side: WorkerSide) -> None:
        await side.send(json_answer(side.request.body))

    bodies = [b'{"n":%d}' % n for n in range(20)]
    async with RawWorker(script) as worker, gateway(worker) as running, running.client() as client:
        await client.send(b"".join(map(post, bodies)))
        assert [(await client.answer()).body for _ in bodies] == bodies


async def test_too_much_pipelined_ahead_closes_after_the_answers() -> None:
    bodies = [b"%04d" % n + b"x" * 30_000 for n in range(30)]

    async def script(side: WorkerSide) -> None:
        await side.send(json_answer(side.request.body))

    async with RawWorker(script) as worker, gateway(worker) as running, running.client() as client:
        await client.send(b"".join(map(post, bodies)))
        received = await client.closed()
        answered = received.count(b"HTTP/1.1 200")
        assert 1 <= answered < len(bodies)
        assert b"HTTP/1.1 4" not in received


async def test_expected_continue_is_sent_before_the_body() -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: g\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    async with RawWorker(answering(JSON)) as worker, gateway(worker) as running, running.client() as client:
        await client.send(head)
        assert (await client.answer()).status == 100
        await client.send(b"{}")
        assert (await client.answer()).status == 200
        assert worker.requests[0].body == b"{}"


async def test_offer_of_http2_is_ignored_and_the_body_kept() -> None:
    extra = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMA\r\n"
    async with RawWorker(answering(JSON)) as worker, gateway(worker) as running, running.client() as client:
        for _ in range(2):
            await client.send(post(b'{"prompt":"p"}', extra=extra))
            assert (await client.answer()).status == 200
        for request in worker.requests:
            assert request.body == b'{"prompt":"p"}'
            assert request.values("upgrade") == request.values("http2-settings") == []


async def test_absolute_target_reaches_the_worker_as_a_path() -> None:
    async with RawWorker(answering(json_answer())) as worker, gateway(worker) as running:
        await running.ask(post(path="http://elsewhere/v1/completions?a=b"))
        assert worker.requests[0].request_line == b"POST /v1/completions?a=b HTTP/1.1"


async def test_worker_connections_are_reused() -> None:
    async with RawWorker(answering(json_answer())) as worker, gateway(worker) as running:
        for _ in range(5):
            await running.ask(post())
        assert len(worker.sides) == 1
        assert running.proxy.upstream.num_idle == 1


async def test_worker_error_comes_back_unchanged() -> None:
    body = b'{"error":{"message":"too long","code":400}}'
    data = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(
        body
    )
    async with RawWorker(answering(data + body)) as worker, gateway(worker) as running:
        answer = await running.ask(post())
        assert (answer.status, answer.body) == (400, body)
        assert len(worker.requests) == 1
