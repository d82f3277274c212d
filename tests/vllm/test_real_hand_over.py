"""Two real vLLM engines with NixlConnector, one prefills and one decodes: through the gateway they answer as
one engine does, and go on when the other is gone. Run in order: the last tests kill the prefill engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio

from tests.support.gateway_process import GatewayProcess
from tests.vllm.conftest import VllmInstance, gateway_before, started, until_all_heard
from tests.vllm.pools import LEASE_SECONDS, nixl_instance

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}},
}
SHARED = {
    "chat": (CHAT, {"max_tokens": 6}),
    "chat-max-completion-tokens": (CHAT, {"max_completion_tokens": 6}),
    "chat-tools": (CHAT, {"max_tokens": 6, "tools": [TOOL], "tool_choice": "none"}),
    "chat-logprobs": (CHAT, {"max_tokens": 4, "logprobs": True, "top_logprobs": 2}),
    "completions": (COMPLETIONS, {"max_tokens": 6}),
    "completions-logprobs": (COMPLETIONS, {"max_tokens": 4, "logprobs": 2}),
    "completions-one-token": (COMPLETIONS, {"max_tokens": 1}),
    "completions-min-tokens": (COMPLETIONS, {"max_tokens": 6, "min_tokens": 5}),
    "completions-stop": (COMPLETIONS, {"max_tokens": 6, "stop": ["e", "a", "i", "o"]}),
}
WHOLE = {
    "batch": {"prompt": ["alpha beta gamma", "delta epsilon zeta"]},
    "choices": {"n": 2, "temperature": 1},
    "echo": {"echo": True},
    "prompt-logprobs": {"prompt_logprobs": 1},
}


def text_of(name: str, num_words: int = 30) -> str:
    return " ".join(f"{name}{number}" for number in range(num_words))


def body_of(path: str, text: str, **members: Any) -> dict[str, Any]:
    prompt = {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
    return {"model": "tiny-llama", "temperature": 0, **prompt, **members}


async def ask(url: str, path: str, body: dict[str, Any], **headers: str) -> tuple[Any, list[dict[str, Any]]]:
    """The answer's head, and its messages: one, or those of a stream."""
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(120)) as session,
        session.post(url + path, json=body, headers=headers) as response,
    ):
        content = await response.text()
        assert response.status == 200, content
        if not body.get("stream"):
            return response.headers, [msgspec.json.decode(content)]
        lines = [line[6:] for line in content.splitlines() if line.startswith("data: ")]
        assert lines.pop() == "[DONE]"
        return response.headers, [msgspec.json.decode(line) for line in lines]


def said(messages: list[dict[str, Any]]) -> list[Any]:
    """All that was generated, log probabilities included; a stream's pieces put together: how many tokens a
    piece holds is a matter of time."""
    text, ends, tokens = "", [], []
    for choice in (choice for message in messages for choice in message["choices"]):
        part = choice.get("message") or choice.get("delta") or choice
        text += part.get("text") or part.get("content") or ""
        ends += [choice["finish_reason"]] if choice["finish_reason"] else []
        tokens += _tokens_of(choice["logprobs"]) if choice.get("logprobs") else []
    return [text, ends, tokens]


def _tokens_of(logprobs: dict[str, Any]) -> list[str]:
    return logprobs.get("tokens") or [each["token"] for each in logprobs["content"]]


async def metric(url: str, name: str, *labels: str) -> float:
    """The sum of the samples of that name with all of these labels."""
    async with aiohttp.ClientSession() as session, session.get(url + "/metrics") as response:
        lines = (await response.text()).splitlines()
    chosen = [line for line in lines if line.startswith((name + "{", name + " "))]
    return sum(float(line.split()[-1]) for line in chosen if all(label in line for label in labels))


async def transferred(decode: VllmInstance) -> float:
    """Prompt tokens that came from another engine."""
    return await metric(decode.url, "vllm:prompt_tokens_by_source_total", 'source="external_kv_transfer"')


async def decisions(gateway: GatewayProcess, prefill: str, reason: str) -> float:
    labels = f'prefill="{prefill}"', f'reason="{reason}"'
    return await metric(gateway.admin_url, "kvgate_disagg_decisions_total", *labels)


async def explain(gateway: GatewayProcess, request_id: str) -> dict[str, Any]:
    return dict((await gateway.admin(f"/explain?request_id={request_id}"))["decisions"][0])


async def until(condition: Callable[[], Awaitable[bool]], *, within: float) -> None:
    async with asyncio.timeout(within):
        while not await condition():
            await asyncio.sleep(0.1)  # polling another process


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(
    vllm_environment: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[list[VllmInstance]]:
    logs = tmp_path_factory.mktemp("nixl")
    roles = enumerate(("prefill", "decode"))
    async with started([nixl_instance(i, role, vllm_environment, logs) for i, role in roles]) as instances:
        yield instances


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(
    pair: list[VllmInstance], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[GatewayProcess]:
    """Hands every prompt over that can be."""
    flags = ("--disagg", "always", "--hand-over-lease", f"{LEASE_SECONDS}s")
    async with gateway_before(pair, tmp_path_factory.mktemp("always"), *flags) as process:
        yield process


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("path", "members"), SHARED.values(), ids=SHARED)
async def test_two_engines_say_what_one_says(gateway, pair, path, members, stream, request) -> None:
    body = body_of(path, f"{request.node.callspec.id} {text_of('shared')}", **members)
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    before = await transferred(pair[1])
    head, answer = await ask(gateway.url, path, body)
    assert (head["x-kvgate-worker"], head["x-kvgate-prefill-worker"]) == ("decode-1", "prefill-0")
    _, alone = await ask(pair[1].url, path, body | {"cache_salt": "computes it itself"})
    assert said(answer) == said(alone)
    usage, expected = answer[-1]["usage"], alone[-1]["usage"]
    assert usage["completion_tokens"] == expected["completion_tokens"]
    assert usage["prompt_tokens"] == expected["prompt_tokens"]
    assert await transferred(pair[1]) - before == usage["prompt_tokens"]


async def test_the_hand_overs_are_counted_on_both_sides(gateway, pair) -> None:
    remote = await decisions(gateway, "remote", "always")
    assert remote > 0
    assert await metric(pair[1].url, "vllm:nixl_xfer_time_seconds_count") == remote
    assert await metric(pair[1].url, "vllm:nixl_num_failed_transfers_total") == 0
    assert await metric(gateway.admin_url, "kvgate_prefill_leg_seconds_count") == remote
    assert await metric(gateway.admin_url, "kvgate_hand_over_failures_total") == 0


async def test_the_prefill_engine_keeps_nothing_that_was_fetched(gateway, pair) -> None:
    await ask(gateway.url, COMPLETIONS, body_of(COMPLETIONS, text_of("kept"), max_tokens=2))

    async def is_free() -> bool:
        return await metric(pair[0].url, "vllm:kv_cache_usage_perc") == 0

    await until(is_free, within=10)


async def test_clients_see_what_the_prefill_engine_had_cached(gateway, pair) -> None:
    body = body_of(COMPLETIONS, text_of("again", 40), max_tokens=2)
    reported = []
    for turn in range(2):
        await until_all_heard(gateway, pair)
        _, (answer,) = await ask(gateway.url, COMPLETIONS, body, **{"x-request-id": f"again-{turn}"})
        reported.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
        leg = (await explain(gateway, f"again-{turn}"))["prefill"]
        assert (leg["worker"], leg["trust"]) == ("prefill-0", "exact")
        assert leg["expected_cached_tokens"] == reported[turn]
    assert reported[0] == 0
    assert reported[1] > 0


@pytest.mark.parametrize("members", WHOLE.values(), ids=WHOLE)
async def test_what_cannot_be_shared_is_answered_by_the_decode_engine(gateway, pair, members) -> None:
    whole, moved = await decisions(gateway, "local", "stays_whole"), await transferred(pair[1])
    body = body_of(COMPLETIONS, text_of("-".join(members)), max_tokens=2) | members
    head, (answer,) = await ask(gateway.url, COMPLETIONS, body)
    assert "x-kvgate-prefill-worker" not in head
    assert len(answer["choices"]) == (2 if "prompt" in members or "n" in members else 1)
    assert await decisions(gateway, "local", "stays_whole") == whole + 1
    assert await transferred(pair[1]) == moved


async def test_the_next_turn_of_a_conversation_makes_no_trip(pair, tmp_path) -> None:
    messages = [{"role": "user", "content": text_of("turn", 60)}]
    async with gateway_before(pair, tmp_path) as gateway:
        verdicts = []
        for turn in range(3):
            await until_all_heard(gateway, pair)
            body = body_of(CHAT, "", max_tokens=8) | {"messages": messages}
            _, (answer,) = await ask(gateway.url, CHAT, body, **{"x-request-id": f"turn-{turn}"})
            verdict = (await explain(gateway, f"turn-{turn}"))["verdict"]
            verdicts.append((verdict["prefill"], verdict["reason"]))
            messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
            messages.append({"role": "user", "content": text_of(f"next{turn}", 5)})
    assert verdicts == [("remote", "little_cached"), ("local", "well_cached"), ("local", "well_cached")]


async def test_a_client_that_leaves_harms_no_engine(gateway, pair) -> None:
    """After moments of all lengths: before the first leg, in it, between them, in the second."""
    for number in range(8):
        body = body_of(COMPLETIONS, text_of(f"left{number}", 120), max_tokens=64)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ask(gateway.url, COMPLETIONS, body), timeout=0.02 * (number + 1))
    await gateway.workers(until=lambda rows: all(not row["load"]["num_active_requests"] for row in rows))
    head, _ = await ask(gateway.url, COMPLETIONS, body_of(COMPLETIONS, text_of("after"), max_tokens=2))
    assert head["x-kvgate-prefill-worker"] == "prefill-0"
    assert all(instance.is_alive for instance in pair)


async def test_the_index_of_both_is_exact(gateway, pair) -> None:
    await until_all_heard(gateway, pair)
    rows = await gateway.workers(until=bool)
    assert {row["id"]: row["trust"]["level"] for row in rows} == {"prefill-0": "exact", "decode-1": "exact"}
    held = {instance.name: len(await instance.held_blocks()) for instance in pair}
    assert {row["id"]: row["index"]["num_blocks"] for row in rows} == held


async def test_without_its_prefill_engine_the_decode_engine_computes_prompts(gateway, pair) -> None:
    await pair[0].kill()
    for turn in range(3):
        body = body_of(COMPLETIONS, text_of(f"fallback{turn}"), max_tokens=4)
        head, answer = await ask(gateway.url, COMPLETIONS, body)
        assert "x-kvgate-prefill-worker" not in head
        _, alone = await ask(pair[1].url, COMPLETIONS, body | {"cache_salt": "computes it itself"})
        assert said(answer) == said(alone)
    assert await metric(gateway.admin_url, "kvgate_hand_over_failures_total", 'leg="prefill"') == 1
    assert await decisions(gateway, "local", "no_prefill_worker") == 2


async def test_a_prefill_engine_that_is_back_is_used_again(gateway, pair) -> None:
    await pair[0].start()
    await pair[0].until_healthy()
    body = body_of(COMPLETIONS, text_of("back"), max_tokens=4)

    async def is_used() -> bool:
        head, _ = await ask(gateway.url, COMPLETIONS, body)
        return head.get("x-kvgate-prefill-worker") == "prefill-0"

    await until(is_used, within=60)
    assert pair[1].is_alive
