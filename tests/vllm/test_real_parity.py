"""Against unmodified vLLM engines: a reset that is known before its event, workers that were warm before the
gateway, and a chat template that is not theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.gateway_process import running_gateway

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]

MODEL = Path(__file__).parent / "tiny-llama"


def text_of(name: str, num_words: int = 150) -> str:
    return " ".join(f"{name}{number}" for number in range(num_words))


async def post(url: str, body: dict[str, Any] | None = None, **headers: str) -> dict[str, Any]:
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    async with aiohttp.ClientSession() as session, session.post(url, json=body, headers=headers) as response:
        assert response.status == 200, await response.text()
        return dict(await response.json())


async def complete(gateway: Any, text: str, request_id: str) -> tuple[int, dict[str, Any]]:
    """The cached tokens that the engine reports, and the decision."""
    body = {"model": "tiny-llama", "prompt": text, "max_tokens": 1, "temperature": 0}
    answer = await post(gateway.url + "/v1/completions", body, x_request_id=request_id)
    decision = (await gateway.admin(f"/explain?request_id={request_id}"))["decisions"][0]
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"], decision


async def test_tokens_blocks_and_cached_tokens_agree(gateway, until_heard) -> None:
    for number in range(3):
        await complete(gateway, text_of(f"p{number}"), f"agree-{number}")
    await until_heard()
    await complete(gateway, text_of("p0"), "agree-again")
    rows = await gateway.workers(until=lambda rows: any(row["parity"]["checks"] for row in rows))
    assert all(row["parity"]["warning"] is None for row in rows)
    await gateway.workers(
        until=lambda rows: any(
            each["check"] == "blocks" and each["verdict"] == "agrees"
            for row in rows
            for each in row["parity"]["checks"]
        )
    )


async def test_a_reset_by_order_is_known_before_the_engine_tells(gateway, until_heard) -> None:
    _, decision = await complete(gateway, text_of("r"), "reset-0")
    await until_heard()
    worker = decision["worker"]
    answer = await post(f"{gateway.admin_url}/workers/{worker}/reset_prefix_cache")
    assert answer["worker"]["index"]["num_blocks"] == 0
    for name in ("reset-1", "reset-2"):
        cached, decision = await complete(gateway, text_of("r"), name)
        if decision["worker"] == worker:
            assert cached == decision["expected_cached_tokens"]
        await until_heard()
    assert all(row["trust"]["level"] == "exact" for row in await gateway.workers(until=bool))


async def test_a_gateway_without_replay_learns_what_was_there_before_it(gateway, engines) -> None:
    await complete(gateway, text_of("w"), "warm")
    arguments = [
        "--worker-urls", engines[0].url, "--kv-events", f"tcp://127.0.0.1:{engines[0].events_port}",
    ]  # fmt: skip
    async with running_gateway(*arguments) as late:
        await late.workers(until=lambda rows: rows[0]["trust"] and rows[0]["trust"]["level"] == "exact")
        cached, decision = await complete(late, text_of("w"), "late-0")
        assert decision["expected_cached_tokens"] == 0
        if cached:  # the first gateway had sent it to this worker
            cached, decision = await complete(late, text_of("w"), "late-1")
            assert decision["expected_cached_tokens"] == cached > 0


async def test_another_chat_template_is_named_at_start_and_by_its_blocks(engines, tmp_path) -> None:
    template = tmp_path / "other.jinja"
    template.write_text(
        "{% for m in messages %}<other>{{ m.role }}: {{ m.content }}</other>{% endfor %}", encoding="utf-8"
    )
    arguments = [
        "--worker-urls", engines[0].url, "--kv-events", f"tcp://127.0.0.1:{engines[0].events_port}",
        "--tokens", "local", "--tokenizer", str(MODEL), "--chat-template", str(template),
    ]  # fmt: skip
    async with running_gateway(*arguments) as gateway:
        await gateway.printed(r"WARNING.*worker .*: .*template", within=60)
        for number in range(3):
            body = {
                "model": "tiny-llama",
                "messages": [{"role": "user", "content": text_of(f"t{number}")}],
                "max_tokens": 1,
            }
            await post(gateway.url + "/v1/chat/completions", body)
            await gateway.workers(
                until=lambda rows, number=number: any(
                    each["check"] == "blocks" and each["differed"] + each["skipped"] > number
                    for each in rows[0]["parity"]["checks"]
                )
            )
        rows = await gateway.workers(until=lambda rows: rows[0]["trust"]["level"] == "degraded")
        assert "template" in rows[0]["trust"]["reason"]
