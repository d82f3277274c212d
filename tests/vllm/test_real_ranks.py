"""One real vLLM with two data-parallel ranks: each is a worker, and what it will report is known."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from loadgen.mock_ranks import find_free_ports
from tests.support.gateway_process import GatewayProcess, running_gateway
from tests.vllm.conftest import VllmInstance, free_port

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]

NUM_RANKS = 2


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(vllm_environment: Path, tmp_path_factory: Any) -> AsyncIterator[VllmInstance]:
    events_port, replay_port = (find_free_ports("127.0.0.1", NUM_RANKS) for _ in range(2))
    log = tmp_path_factory.mktemp("vllm") / "ranks.log"
    instance = VllmInstance(0, free_port(), events_port, replay_port, vllm_environment, log, NUM_RANKS)
    try:
        await instance.start()
        await instance.until_healthy()
        yield instance
    finally:
        await instance.kill()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(server: VllmInstance) -> AsyncIterator[GatewayProcess]:
    options = (
        "--worker-urls", server.url, "--kv-events", f"tcp://{{host}}:{server.events_port}",
        "--kv-replay", f"tcp://{{host}}:{server.replay_port}", "--load-monitor-interval", "0.5",
    )  # fmt: skip
    async with running_gateway(*options) as process:
        await process.workers(
            until=lambda rows: (
                len(rows) == NUM_RANKS and all((row["trust"] or {}).get("level") == "exact" for row in rows)
            )
        )
        yield process


async def until_heard(gateway: GatewayProcess, server: VllmInstance) -> None:
    published = [await server.last_published(rank) for rank in range(NUM_RANKS)]

    def heard(rows: list[dict[str, Any]]) -> bool:
        last = {row["dp_rank"]: row["events"]["last_sequence"] for row in rows}
        return all(number < 0 or last[rank] == number for rank, number in enumerate(published))

    await gateway.workers(until=heard)


async def prompt_tokens_of(server: VllmInstance, session: aiohttp.ClientSession) -> list[float]:
    """What each rank says that it was asked."""
    async with session.get(server.url + "/metrics") as response:
        lines = (await response.text()).splitlines()
    told = [line for line in lines if line.startswith("vllm:prompt_tokens_total{")]
    return [
        sum(float(line.split()[-1]) for line in told if f'engine="{rank}"' in line)
        for rank in range(NUM_RANKS)
    ]


async def test_the_start_line_counts_the_ranks(gateway) -> None:
    line = (await gateway.printed(r"worker .*: vLLM.*")).string
    assert "2 data-parallel ranks" in line
    assert "index exact, from tcp://127.0.0.1:" in line


async def test_requests_reach_the_rank_that_holds_their_prefix_and_are_expected_exactly(
    gateway, server
) -> None:
    holders: dict[str, str] = {}
    async with aiohttp.ClientSession() as session:
        for turn in range(12):
            prompt = f"prompt {turn % 4} " + "cache block router worker prefill " * 20
            before = await prompt_tokens_of(server, session)
            body = {"model": "tiny-llama", "prompt": prompt, "max_tokens": 2, "temperature": 0}
            async with session.post(
                gateway.url + "/v1/completions", json=body, headers={"x-request-id": f"turn-{turn}"}
            ) as response:
                assert response.status == 200
                worker, answer = response.headers["x-kvgate-worker"], await response.json()
            after = await prompt_tokens_of(server, session)
            grown = [now - then for now, then in zip(after, before, strict=True)]
            assert [rank for rank in range(NUM_RANKS) if grown[rank]] == [int(worker[-1])]
            decision = (await gateway.admin(f"/explain?request_id=turn-{turn}"))["decisions"][0]
            reported = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert (decision["expected_cached_tokens"], decision["trust"]) == (reported, "exact")
            assert (reported > 0) == (turn >= 4)
            assert holders.setdefault(prompt, worker) == worker
            await until_heard(gateway, server)
    assert len(set(holders.values())) == NUM_RANKS
