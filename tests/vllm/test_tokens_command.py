"""The gateway finds its workers' tokenizer, and `kvgate tokens` no difference to their own tokens."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import msgspec
import pytest

from tests.vllm.conftest import MODEL

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]

LONG = " ".join(f"rule {i}: keep answers short." for i in range(24))
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "extra": 1}}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}

BODIES: dict[str, dict[str, Any]] = {
    "chat": {"messages": [{"role": "system", "content": LONG}, {"role": "user", "content": "a"}]},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": LONG}] * 2}]},
    "tools": {
        "messages": [
            {"role": "user", "content": LONG + "?"},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "7"}]},
        ],
        "tools": [TOOL],
    },
    "an open end": {
        "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": LONG}],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
    "text": {"prompt": LONG},
    "texts": {"prompt": [LONG, "another"]},
}


async def test_the_tokenizer_is_found_by_the_workers_own_word(gateway) -> None:
    line = await gateway.printed(r"tiny-llama: tokens by .*")
    assert str(MODEL) in line.string


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
async def test_no_difference(body, engines) -> None:
    code, report = await tokens_command(body, engines[0].url)
    assert (code, report["worker"]["equal"]) == (0, True)


async def test_another_template(engines, tmp_path) -> None:
    template = tmp_path / "template"
    template.write_text("<|endoftext|>{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    code, report = await tokens_command(BODIES["chat"], engines[0].url, "--chat-template", str(template))
    assert code == 1
    assert "chat template" in report["worker"]["likely_cause"]


async def tokens_command(body: dict[str, Any], url: str, *argv: str) -> tuple[int | None, dict[str, Any]]:
    """Exit code and report of the command, in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "router", "tokens", "--tokenizer", str(MODEL), "--worker", url, *argv,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    shown, _ = await process.communicate(msgspec.json.encode(body | {"model": "tiny-llama"}))
    return process.returncode, msgspec.json.decode(shown)
