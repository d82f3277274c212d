"""The promise of the gateway, kept with unmodified vLLM engines and the client that people use."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAIError

from tests.support.waiting import eventually

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]

WORDS = "router worker block cache prefix token engine prompt decode prefill queue".split()  # noqa: SIM905


def text_of(seed: int, num_words: int) -> str:
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(num_words))


def client_of(gateway: Any) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=gateway.url + "/v1", api_key="unused", max_retries=0, timeout=60)


async def explain(gateway: Any, request_id: str) -> dict[str, Any]:
    return dict((await gateway.admin(f"/explain?request_id={request_id}"))["decisions"][0])


async def test_start_lines_say_what_each_worker_is(gateway) -> None:
    for name in ("engine-0", "engine-1"):
        line = (await gateway.printed(rf"worker {name}: vLLM.*")).string
        assert "0.32.0" in line
        assert "tiny-llama" in line
        assert "blocks of 32 tokens" in line
        assert "256 KV blocks" in line
        assert "index exact" in line


async def test_models_are_listed_through_the_client(gateway) -> None:
    async with client_of(gateway) as client:
        models = await client.models.list()
    assert [model.id for model in models.data] == ["tiny-llama"]


async def chat(client: AsyncOpenAI, text: str, **options: Any) -> Any:
    return await client.chat.completions.with_raw_response.create(
        model="tiny-llama",
        messages=[{"role": "user", "content": text}],
        max_tokens=4,
        temperature=0,
        **options,
    )


async def complete(client: AsyncOpenAI, text: str, **options: Any) -> Any:
    return await client.completions.with_raw_response.create(
        model="tiny-llama", prompt=text, max_tokens=4, temperature=0, **options
    )


async def usage_of(raw: Any, *, stream: bool) -> Any:
    parsed = raw.parse()
    if not stream:
        return parsed.usage
    usage = None
    async for chunk in parsed:
        usage = chunk.usage or usage
    return usage


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("call", [chat, complete], ids=["chat", "completions"])
async def test_second_identical_prompt_goes_to_the_holder_and_expected_equals_reported(
    gateway, call, stream, until_heard
) -> None:
    text = text_of(2 * len(call.__name__) + stream, 200)
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    async with client_of(gateway) as client:
        first = await call(client, text, **options)
        await usage_of(first, stream=stream)
        for turn in range(3):
            await until_heard()
            request_id = f"{call.__name__}-{stream}-{turn}"
            again = await call(client, text, extra_headers={"x-request-id": request_id}, **options)
            usage = await usage_of(again, stream=stream)
            assert again.headers["x-kvgate-worker"] == first.headers["x-kvgate-worker"]
            decision = await explain(gateway, request_id)
            reported = usage.prompt_tokens_details.cached_tokens
            assert reported > 0
            assert decision["expected_cached_tokens"] == reported
            assert decision["trust"] == "exact"


async def test_a_conversation_stays_with_its_worker_and_is_expected_exactly(gateway, until_heard) -> None:
    messages = [{"role": "user", "content": text_of(77, 80)}]
    workers = []
    async with client_of(gateway) as client:
        for turn in range(4):
            await until_heard()  # blocks of the last answer, too
            request_id = f"conversation-{turn}"
            raw = await client.chat.completions.with_raw_response.create(
                model="tiny-llama", messages=messages, max_tokens=24, temperature=0,
                extra_headers={"x-request-id": request_id},
            )  # fmt: skip
            answer = raw.parse()
            workers.append(raw.headers["x-kvgate-worker"])
            decision = await explain(gateway, request_id)
            assert decision["expected_cached_tokens"] == answer.usage.prompt_tokens_details.cached_tokens
            messages.append({"role": "assistant", "content": answer.choices[0].message.content})
            messages.append({"role": "user", "content": text_of(78 + turn, 30)})
    assert len(set(workers)) == 1


async def test_engine_errors_come_back_unchanged(gateway, engines) -> None:
    async with client_of(gateway) as client:
        with pytest.raises(OpenAIError, match="1024"):
            await chat(client, text_of(5, 3000))


async def test_killing_one_engine_loses_no_request_that_had_not_begun_to_answer(gateway, engines) -> None:
    """Last in this file, which is run in order: the engine stays dead."""
    begun: set[int] = set()
    async with client_of(gateway) as client:

        async def one(i: int) -> str:
            raw = await complete(client, text_of(1000 + i, 150), stream=True)
            try:
                async for _ in raw.parse():
                    begun.add(i)
            except OpenAIError:
                return "cut"
            return "whole" if i in begun else "empty"

        tasks = [asyncio.ensure_future(one(i)) for i in range(40)]
        await eventually(lambda: len(begun) >= 4, within=60, what="some answer, others still wait")
        await engines[1].kill()
        results = await asyncio.gather(*tasks)
    lost = [i for i, result in enumerate(results) if result != "whole" and i not in begun]
    assert lost == []
    assert results.count("whole") > 20
    rows = await gateway.workers(
        until=lambda rows: all(row["load"]["num_active_requests"] == 0 for row in rows)
    )
    assert {row["id"] for row in rows} == {"engine-0", "engine-1"}
