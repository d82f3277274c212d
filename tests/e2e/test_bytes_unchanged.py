"""Bodies that tempt a gateway to touch them, in both directions: they arrive as they were sent."""

from __future__ import annotations

import asyncio
import gzip

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
from tests.support.relay import gateway, post

ZSTD = bytes.fromhex("28b52ffd2411890000") + b'{"model":"m","a"}' + bytes.fromhex("3b1d5ab0")
"""Begins as a frame does; nobody on the way is to look inside."""
GZIP = gzip.compress(b'{"model":"m","prompt":"p"}')
PARTS = (
    b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n'
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n\x00\xff\r\n--c\r\n--b--\r\n'
)

JSON_BODIES = {
    "unknown fields": b'{"prompt":"p","vendor_field":{"a":[1,null,{"b":{}}]},"x":null}',
    "keys twice": b'{"model":"m","prompt":"p","temperature":0,"temperature":1,"model":"m"}',
    "big integers": b'{"prompt":"p","seed":123456789012345678901234567890,"n":1E400,"z":-0.0,"f":1.10}',
    "white space": b' \r\n\t{ "prompt" :\n"p" , "stream"\r:false}\n\n',
    "escapes": rb'{"prompt":"\u00e4\ud83d\ude00\/\u0000","\u0070rompt2":"\b"}',
    "text beyond ASCII": '{"prompt":"ä \u2028 😀"}'.encode(),
    "surrogates that stand alone": rb'{"prompt":"\ud800"}',
    "NaN": b'{"prompt":"p","temperature":NaN,"top_p":-Infinity}',
    "byte order mark": b'\xef\xbb\xbf{"prompt":"p"}',
    "tokens": b'{"prompt":[1,2,3,  4]}',
}
OTHER_BODIES = {
    "gzip": (GZIP, "Content-Encoding: gzip\r\n", "/v1/completions"),
    "zstd": (ZSTD, "Content-Encoding: zstd\r\n", "/v1/chat/completions"),
    "multipart": (PARTS, "Content-Type: multipart/form-data; boundary=b\r\n", "/v1/audio/transcriptions"),
}
BODIES = {name: (body, "", "/v1/completions") for name, body in JSON_BODIES.items()} | OTHER_BODIES


@pytest.mark.parametrize("policy", ["round_robin", "kv"])
@pytest.mark.parametrize("name", BODIES)
async def test_request(name: str, policy: str) -> None:
    """Whether the policy reads the prompt or not."""
    body, extra, path = BODIES[name]
    async with RawWorker(answering(json_answer())) as worker, gateway(worker, policy=policy) as running:
        assert (await running.ask(post(body, path, extra=extra))).status == 200
        (request,) = worker.requests
        assert request.body == body
        assert request.values("content-length") == [b"%d" % len(body)]
        for line in extra.encode().split(b"\r\n"):
            assert line in request.head


EVENTS = [
    event("data: [DONE]\\n\\n"),
    b'data: {"choices":[{"delta":{"tool_calls":[{"arguments":"data: [DONE]"}]}}]}\n\n',
    b'data: {"text":"data: [DONE]","usage":null}\n\n',
    b": keep-alive\n\n",
    b"event: message\r\ndata: 1\r\ndata: 2\r\n\r\n",
    b"data: cr\r\r",
    b"id: 7\nretry: 5\n\n",
    "data: \u2028 \u0085 ä\n\n".encode(),
    b"data:\n\n",
    b"data: [DONE]\n\n",
    b"data: behind it\n\n",
]
STREAM = b"".join(EVENTS)
LENGTH_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(
    STREAM
)
GZIP_HEAD = STREAM_HEAD.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n")

ANSWERS = {
    "JSON": json_answer(b' {"a":1,"a":123456789012345678901234567890,\n"usage":{"prompt_tokens":1}}\n'),
    "gzip": json_answer(GZIP, extra=b"Content-Encoding: gzip\r\n"),
    "zstd": json_answer(ZSTD, extra=b"Content-Encoding: zstd\r\nVary: Accept-Encoding\r\n"),
    "gzip in chunks": GZIP_HEAD + chunk(GZIP[:7]) + chunk(GZIP[7:]) + END_OF_CHUNKS,
    "events, one a chunk": STREAM_HEAD + b"".join(map(chunk, EVENTS)) + END_OF_CHUNKS,
    "events in one chunk": STREAM_HEAD + chunk(STREAM) + END_OF_CHUNKS,
    "events a byte a chunk": STREAM_HEAD + b"".join(chunk(bytes([b])) for b in STREAM) + END_OF_CHUNKS,
    "events with a length": LENGTH_HEAD + STREAM,
    "chunk sizes as nobody writes them": STREAM_HEAD + b"00B;a=b\r\ndata: 1\r\n\r\n\r\n000\r\n\r\n",
}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/version"])
@pytest.mark.parametrize("name", ANSWERS)
async def test_answer(name: str, path: str) -> None:
    """Framing included: chunks are passed on as the worker made them."""
    head, _, body = ANSWERS[name].partition(b"\r\n\r\n")
    method = "GET" if path == "/version" else "POST"
    settings = Settings(policy="kv")
    async with RawWorker(answering(ANSWERS[name])) as worker, gateway(worker, settings=settings) as running:
        request = post(b'{"messages":[],"input":"p"}', path).replace(b"POST", method.encode(), 1)
        answer = await running.ask(request)
        assert answer.status == 200
        assert answer.raw_body == body
        for line in head.split(b"\r\n")[1:]:
            assert line.lower() in answer.head.lower()


async def test_stream_cut_at_every_offset_on_the_wire() -> None:
    """Wherever one write of the worker ends; with a turn of the loop between them, nearly each is a read."""
    data = STREAM_HEAD + b"".join(map(chunk, EVENTS[:5])) + END_OF_CHUNKS
    cut = 0

    async def script(side: WorkerSide) -> None:
        await side.send(data[:cut])
        for _ in range(3):
            await asyncio.sleep(0)
        await side.send(data[cut:])

    async with RawWorker(script) as worker, gateway(worker) as running, running.client() as client:
        for cut in range(1, len(data)):  # noqa: B007 - the script reads it
            await client.send(post())
            assert (await client.answer()).raw_body == data.removeprefix(STREAM_HEAD)
