"""Broken streams as client libraries see them: an error in the endpoint's protocol, never a silent end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import openai
import orjson
import pytest

from tests.support.raw_worker import STREAM_HEAD, RawWorker, Script, WorkerSide, chunk
from tests.support.relay import gateway, get, post

CHAT = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m"}
CHAT_EVENT = b"data: %b\n\n" % orjson.dumps(
    {**CHAT, "choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]}
)
COMPLETION_EVENT = b"data: %b\n\n" % orjson.dumps(
    {**CHAT, "object": "text_completion", "choices": [{"index": 0, "text": "a", "finish_reason": None}]}
)
RESPONSES_EVENT = b"event: response.output_text.delta\ndata: %b\n\n" % orjson.dumps(
    {"type": "response.output_text.delta", "sequence_number": 0, "delta": "a", "item_id": "i"}
)
MESSAGES_EVENT = b"event: content_block_delta\ndata: %b\n\n" % orjson.dumps(
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}}
)

Ask = Callable[[openai.AsyncOpenAI], Awaitable[AsyncIterator[object]]]


async def chat(client: openai.AsyncOpenAI) -> AsyncIterator[object]:
    messages = [{"role": "user", "content": "q"}]
    return await client.chat.completions.create(model="m", messages=messages, stream=True)


async def completions(client: openai.AsyncOpenAI) -> AsyncIterator[object]:
    return await client.completions.create(model="m", prompt="q", stream=True)


async def responses(client: openai.AsyncOpenAI) -> AsyncIterator[object]:
    return await client.responses.create(model="m", input="q", stream=True)


def sends_and(event: bytes, *, dies: bool) -> Script:
    """Two events, then the worker dies or falls silent."""

    async def script(side: WorkerSide) -> None:
        await side.send(STREAM_HEAD + chunk(event) + chunk(event))
        if dies:
            side.close()
        else:
            await side.peer_left()

    return script


@pytest.mark.parametrize(("dies", "code"), [(True, "worker_unavailable"), (False, "idle_timeout")])
@pytest.mark.parametrize(
    ("ask", "event"),
    [(chat, CHAT_EVENT), (completions, COMPLETION_EVENT), (responses, RESPONSES_EVENT)],
)
async def test_openai_client_raises(ask: Ask, event: bytes, dies: bool, code: str) -> None:
    async with RawWorker(sends_and(event, dies=dies)) as worker, gateway(worker, idle_seconds=0.1) as running:
        async with openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{running.port}/v1", api_key="none", max_retries=0
        ) as client:
            events = await ask(client)
            assert [await anext(events), await anext(events)]
            with pytest.raises(openai.APIError) as failure:
                await anext(events)
        assert failure.value.code == code
        assert running.counted("kvgate_stream_errors_total", placed="true") == 1


@pytest.mark.parametrize(
    ("path", "event", "last"),
    [
        (
            "/v1/responses",
            RESPONSES_EVENT,
            b'event: error\ndata: {"type":"error","code":"worker_unavailable",',
        ),
        ("/v1/messages", MESSAGES_EVENT, b'event: error\ndata: {"type":"error","error":{"type":"api_error",'),
        ("/generate", CHAT_EVENT, b'data: {"error":{"message":"The worker closed'),
    ],
)
async def test_last_event_is_the_protocols_own(path: str, event: bytes, last: bytes) -> None:
    async with RawWorker(sends_and(event, dies=True)) as worker, gateway(worker) as running:
        answer = await running.ask(post(b'{"model":"m"}', path))
        assert answer.body.startswith(event * 2 + last)
        assert answer.body.endswith(b"data: [DONE]\n\n") is (path == "/generate")
        if path == "/v1/responses":
            assert b'"sequence_number":2' in answer.body


async def test_stored_response_that_is_streamed_again_breaks_off_in_its_own_protocol() -> None:
    async with RawWorker(sends_and(RESPONSES_EVENT, dies=True)) as worker, gateway(worker) as running:
        answer = await running.ask(get("/v1/responses/resp_1?stream=true"))
        assert answer.body.startswith(RESPONSES_EVENT * 2 + b'event: error\ndata: {"type":"error","code":')


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_stream_that_said_done_is_whole(version: str) -> None:
    """A worker that dies between `[DONE]` and the end of its chunks took nothing from the client."""

    async def script(side: WorkerSide) -> None:
        await side.send(STREAM_HEAD + chunk(CHAT_EVENT) + chunk(b"data: [DONE]\n\n"))
        side.close()

    async with RawWorker(script) as worker, gateway(worker) as running, running.client() as client:
        await client.send(post().replace(b"HTTP/1.1", b"HTTP/%b" % version.encode()))
        if version == "1.1":
            assert (await client.answer()).body == CHAT_EVENT + b"data: [DONE]\n\n"
            await client.send(get("/health"))
            assert (await client.answer()).status == 200
        else:
            assert (await client.closed()).endswith(CHAT_EVENT + b"data: [DONE]\n\n")
        assert running.counted("kvgate_requests_total", outcome="done") == 1
        assert running.counted("kvgate_stream_errors_total") == 0
