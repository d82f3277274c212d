"""Tokens made in the gateway are the engine's own: expected cached tokens equal the reported ones, whatever
the kind of request."""

from __future__ import annotations

import random
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.support.gateway_process import GatewayProcess
from tests.vllm.conftest import MODEL, gateway_before, two_engines

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]

CHAT_TEMPLATE = MODEL.parents[1] / "fixtures" / "chat-templates" / "templates" / "qwen2.5-7b-instruct.jinja"

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place, at noon.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string", "description": "a town"}},
            "required": ["place"],
        },
    },
}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"place": "Bern"}'}}


def words(seed: int, num: int) -> str:
    rng = random.Random(seed)
    return " ".join(
        rng.choice(["router", "worker", "block", "prefix", "über", "缓存", "decode"]) for _ in range(num)
    )


def chat(*messages: dict[str, Any], **fields: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/chat/completions", {"messages": messages, **fields}


def completion(prompt: Any, **fields: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/completions", {"prompt": prompt, **fields}


SYSTEM = {"role": "system", "content": words(1, 60)}
QUESTION = {"role": "user", "content": words(2, 40)}
ANSWER = {"role": "assistant", "content": words(3, 30)}
PARTS = {
    "role": "user",
    "content": [{"type": "text", "text": words(4, 50)}, {"type": "text", "text": "and?"}],
}

REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": chat(SYSTEM, QUESTION),
    "next turn": chat(SYSTEM, QUESTION, ANSWER, {"role": "user", "content": "Go on."}),
    "content in parts": chat(SYSTEM, PARTS),
    "prefix of an answer": chat(
        SYSTEM, QUESTION, ANSWER, continue_final_message=True, add_generation_prompt=False
    ),
    "tools offered": chat(SYSTEM, QUESTION, tools=[WEATHER], tool_choice="none"),
    "tool called": chat(
        SYSTEM,
        QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        tools=[WEATHER],
        tool_choice="none",
    ),
    "text": completion(words(5, 90)),
    "text without special tokens": completion(words(6, 90), add_special_tokens=False),
    "token ids": completion([17 + i * 7 % 200 for i in range(150)]),
    "salted chat": chat(SYSTEM, QUESTION, cache_salt="s1"),
    "other salt": chat(SYSTEM, QUESTION, cache_salt="s2"),
    "salted text": completion(words(5, 90), cache_salt="s1"),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engines(vllm_environment, tmp_path_factory) -> Any:
    """With a chat template that renders tools; the tiny model's own does not."""
    flags = (
        "--chat-template",
        str(CHAT_TEMPLATE),
        "--enable-auto-tool-choice",
        "--tool-call-parser",
        "hermes",
    )
    async with two_engines(vllm_environment, tmp_path_factory.mktemp("vllm"), *flags) as instances:
        yield instances


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(engines, tmp_path_factory) -> Any:
    flags = ("--tokens", "local", "--tokenizer", str(MODEL), "--chat-template", str(CHAT_TEMPLATE))
    async with gateway_before(engines, tmp_path_factory.mktemp("gateway"), *flags) as process:
        yield process


async def ask(process: GatewayProcess, path: str, fields: dict[str, Any], request_id: str) -> dict[str, Any]:
    body = {"model": "tiny-llama", "max_tokens": 2, "temperature": 0, **fields}
    async with (
        aiohttp.ClientSession() as session,
        session.post(process.url + path, json=body, headers={"x-request-id": request_id}) as response,
    ):
        answer = await response.json()
        assert response.status == 200, answer
        return dict(answer)


async def test_expected_equals_reported_for_every_kind_of_request(gateway, until_heard) -> None:
    order = [(name, turn) for name in REQUESTS for turn in range(3)]
    random.Random(7).shuffle(order)
    cached = dict.fromkeys(REQUESTS, 0)
    for name, turn in order:
        await until_heard()
        request_id = f"{name}-{turn}".replace(" ", "-")
        answer = await ask(gateway, *REQUESTS[name], request_id)
        decision = (await gateway.admin(f"/explain?request_id={request_id}"))["decisions"][0]
        reported = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert decision["num_prompt_tokens"] == answer["usage"]["prompt_tokens"], name
        assert decision["expected_cached_tokens"] == reported, name
        cached[name] = max(cached[name], reported)
    assert all(cached.values()), cached
    rows = await gateway.workers(until=lambda rows: all(row["parity"]["checks"] for row in rows))
    assert [row["parity"]["warning"] for row in rows] == [None, None]
