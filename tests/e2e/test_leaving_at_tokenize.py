"""A client that leaves while an engine counts the tokens of its prompt: that work ends too."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from router.config import WorkerConfig
from router.tokens.limits import TOKENIZE_SECONDS
from tests.support.raw_worker import RawWorker, WorkerSide, json_answer
from tests.support.relay import post
from tests.support.serving import at_rest, counted, serving
from tests.support.waiting import eventually

RECORDED = Path(__file__).parents[1] / "fixtures/http/vllm-0.32.0"
ANSWERS = {
    b"/v1/models": (RECORDED / "models.json").read_bytes(),
    b"/version": (RECORDED / "version.json").read_bytes(),
    b"/metrics": (RECORDED / "metrics.txt").read_bytes(),
    b"/tokenize": b'{"count":1,"max_model_len":1024,"tokens":[68]}',
}
REQUEST = post(b'{"model":"tiny-llama","prompt":"long"}')


async def engine(side: WorkerSide) -> None:
    """Recorded answers, but the tokens of a long prompt never come."""
    path = side.request.request_line.split(b" ")[1]
    if path == b"/tokenize" and b"long" in side.request.body:
        await side.peer_left()
    else:
        await side.send(json_answer(ANSWERS.get(path, b"{}")))


@pytest.mark.parametrize("half_closed", [True, False])
async def test_client_that_leaves_while_its_tokens_are_counted(half_closed: bool) -> None:
    async with (
        RawWorker(engine) as worker,
        serving((WorkerConfig(url=worker.url),), policy="kv", tokens="engine", until_ready=False) as client,
    ):
        gateway = client.gateway
        await eventually(lambda: "tiny-llama" in gateway.core.models())
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(REQUEST)
        side = await eventually(lambda: next((s for s in worker.sides if b"long" in s.request.body), None))
        assert side.request.request_line.startswith(b"POST /tokenize ")
        if half_closed:
            writer.write_eof()
        else:
            writer.transport.abort()
        await eventually(side.gone.is_set, within=TOKENIZE_SECONDS / 2)  # else it ends by that limit
        await at_rest(gateway)
        assert not any(b"/v1/completions" in request.request_line for request in worker.requests)
        assert counted(gateway, "kvgate_client_gone_total", phase="routing") == 1
        writer.transport.abort()
