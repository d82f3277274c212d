"""Pools as users name them: prefill and decode workers by flags, over the admin port, gone and back."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import aiohttp
import pytest

from loadgen.mock_process import MockWorker
from loadgen.mock_worker import MockFleet
from router.app import Gateway
from router.config import load
from tests.support.serving import FAST, Client, at_rest
from tests.support.waiting import eventually

PROMPT = {"model": "mock", "prompt": "a prompt that nobody holds", "max_tokens": 3}


@pytest.fixture
async def mocks():
    async with MockFleet(3, engine=FAST) as fleet:
        yield fleet.workers


@contextlib.asynccontextmanager
async def serving(prefill: Sequence[MockWorker], decode: Sequence[MockWorker], *argv: str):
    """Workers with a common store: any engine finds there what another has computed, so nothing joins the
    legs. All of them have joined."""
    pools = [word for each in prefill for word in ("--prefill", each.url)]
    pools += [word for each in decode for word in ("--decode", each.url)]
    ports = ("--host", "127.0.0.1", "--port", "0", "--admin-port", "0")
    settings = load([*ports, "--tokens", "bytes", "--kv-connector", "store", *pools, *argv], {}, lambda _: "")
    gateway = Gateway(settings)
    await gateway.start()
    try:
        async with aiohttp.ClientSession() as session:
            await eventually(
                lambda: gateway.fleet.views() and all(row["trust"] for row in gateway.fleet.views())
            )
            yield Client(gateway, session)
            await at_rest(gateway)
    finally:
        await gateway.stop(0.0)


async def legs_of(client) -> tuple[str, str]:
    """Who answered, and who computed the prompt."""
    status, answer, headers = await client.post("/v1/completions", PROMPT)
    assert status == 200, answer
    assert answer["usage"]["completion_tokens"] == 3
    return headers["x-kvgate-worker"], headers.get("x-kvgate-prefill-worker", "")


async def test_a_prompt_is_computed_in_one_pool_and_answered_by_the_other(mocks) -> None:
    async with serving(mocks[:2], mocks[2:], "--disagg", "always") as client:
        decode, prefill = await legs_of(client)
        rows = {row["id"]: row for row in client.gateway.fleet.views()}
        assert (rows[decode]["role"], rows[prefill]["role"]) == ("decode", "prefill")
        assert rows[prefill]["hand_over"]["protocol"] == "store"


async def test_a_prefill_pool_that_empties_and_comes_back_is_used_again(mocks) -> None:
    async with serving(mocks[:1], mocks[1:2], "--disagg", "always") as client:
        _, prefill = await legs_of(client)
        assert prefill
        await client.admin(f"/workers/{prefill}", "DELETE")
        assert (await legs_of(client))[1] == ""
        status, _ = await client.admin(
            "/workers", "POST", {"url": mocks[0].url, "name": "again", "role": "prefill"}
        )
        assert status == 201
        assert (await legs_of(client))[1] == "again"


async def test_without_a_decode_worker_it_is_not_ready(mocks) -> None:
    async with serving(mocks[:1], mocks[1:2]) as client:
        assert (await client.get("/readyz"))[0] == 200
        (decode,) = (row["id"] for row in client.gateway.fleet.views() if row["role"] == "decode")
        await client.admin(f"/workers/{decode}", "DELETE")
        assert (await client.get("/readyz"))[0] == 503
        status, answer, _ = await client.post("/v1/completions", PROMPT)
        assert (status, answer["error"]["code"]) == (503, "no_workers")
        await client.admin("/workers", "POST", {"url": mocks[2].url, "role": "decode"})
        await eventually(client.gateway.fleet.is_ready)
        assert (await legs_of(client))[1]


async def test_a_whole_worker_answers_alone_beside_the_pools(mocks) -> None:
    whole = ("--worker-urls", mocks[2].url, "--policy", "random")
    async with serving(mocks[:1], mocks[1:2], *whole, "--disagg", "always") as client:
        seen = {await legs_of(client) for _ in range(12)}
        roles = {row["id"]: row["role"] for row in client.gateway.fleet.views()}
        assert {roles[answered] for answered, _ in seen} == {"decode", "both"}
        for answered, computed in seen:
            assert bool(computed) == (roles[answered] == "decode")


async def test_each_pool_has_the_policy_that_was_given(mocks) -> None:
    policies = ("--prefill-policy", "round_robin", "--decode-policy", "random")
    async with serving(mocks[:2], mocks[2:], *policies) as client:
        _, shown = await client.admin("/policy")
        assert {name: each["policy"] for name, each in shown["pools"].items()} == {
            "prefill": "round_robin",
            "decode": "random",
        }


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ({"role": "cook"}, "role: must be one of both, prefill, decode"),
        ({"role": "decode", "bootstrap_port": 8998}, "bootstrap_port: is for prefill workers"),
        ({"role": "prefill", "bootstrp_port": 8998}, "did you mean bootstrap_port?"),
        ({"role": "prefill", "connector": "p2p"}, "kv_address: is needed for the connector p2p"),
    ],
)
async def test_what_cannot_be_added_to_a_pool_is_said(mocks, body, what) -> None:
    async with serving(mocks[:1], mocks[1:2]) as client:
        status, answer = await client.admin("/workers", "POST", {"url": mocks[2].url} | body)
        assert status == 400
        assert what in answer["error"]["message"]
