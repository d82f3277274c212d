"""Two real vLLM engines that share KV through a folder: what one has prefilled the other finds there."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

from tests.vllm.conftest import gateway_before, started
from tests.vllm.pools import store_instance

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]


async def test_a_prompt_prefilled_on_one_is_found_by_the_other(vllm_environment: Path, tmp_path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    instances = [
        store_instance(i, role, vllm_environment, tmp_path, store)
        for i, role in enumerate(("prefill", "decode"))
    ]
    prompt = " ".join(f"shared{number}" for number in range(40))
    body = {"model": "tiny-llama", "prompt": prompt, "max_tokens": 6, "temperature": 0}
    flags = ("--kv-connector", "store", "--disagg", "always")
    async with (
        started(instances),
        gateway_before(instances, tmp_path, *flags) as gateway,
        aiohttp.ClientSession() as session,
    ):
        async with session.post(gateway.url + "/v1/completions", json=body) as response:
            answer = await response.json()
            assert response.headers["x-kvgate-worker"] == "decode-1"
            assert response.headers["x-kvgate-prefill-worker"] == "prefill-0"
        async with session.post(instances[0].url + "/v1/completions", json=body) as response:
            computed = await response.json()
    assert answer["choices"][0]["text"] == computed["choices"][0]["text"]
    whole_blocks = (answer["usage"]["prompt_tokens"] - 1) // 32 * 32
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == whole_blocks
