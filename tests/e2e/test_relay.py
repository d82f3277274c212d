"""Requests and answers through the gateway: bytes unchanged, framing right, headers as they must be."""

from __future__ import annotations

from tests.support.raw_worker import RawWorker, answering, json_answer
from tests.support.relay import gateway, post


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
