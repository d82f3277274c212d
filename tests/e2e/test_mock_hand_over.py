"""Mock pools without a gateway: both legs by hand, as a gateway sends them, and all that kills or poisons."""

from __future__ import annotations

import asyncio
import contextlib

import aiohttp
import pytest

from loadgen.engine import EngineSettings
from loadgen.mock_hand_over import HandOverConfig
from loadgen.mock_worker import MockFleet
from loadgen.transfer import TransferModel
from loadgen.wire import NEWEST
from tests.support.waiting import eventually

FAST = EngineSettings(speedup=200.0)
PROMPT = "baba bebe bibi bobo bubu " * 20
BODY = {"model": "mock", "prompt": PROMPT, "max_tokens": 5}
ASK = {"do_remote_decode": True, "do_remote_prefill": False}
QUICK = HandOverConfig(
    transfer=TransferModel(gbps=400.0), handshake_seconds=0.02, meeting_seconds=0.2, bootstrap_port=0
)


@pytest.fixture
async def http():
    async with aiohttp.ClientSession() as session:
        yield session


@contextlib.asynccontextmanager
async def pools(connector="nixl", *, num_decode=1, num_prefill=1, **options):
    """(prefill worker, decode worker), idle in the end."""
    config = {name: getattr(QUICK, name) for name in QUICK.__dataclass_fields__} | {"connector": connector}
    config |= {name: options.pop(name) for name in list(options) if name in config}
    fleet = MockFleet(
        0,
        num_prefill=num_prefill,
        num_decode=num_decode,
        engine=FAST,
        hand_over=HandOverConfig(**config),
        **options,
    )
    async with fleet:
        yield fleet.prefill[0], fleet.decode[0]
        for worker in fleet.workers:
            await eventually(lambda worker=worker: idle(worker), what=f"worker {worker.index} is idle")


def idle(worker):
    stats = worker.stats()
    return stats["active_requests"] == 0


async def post(http, worker, body, path="/v1/completions"):
    async with http.post(worker.url + path, json=body) as response:
        return response.status, await response.json()


async def prefilled(http, worker, **changes):
    """The parameters of a prefill leg's answer."""
    status, answer = await post(http, worker, BODY | {"max_tokens": 1, "kv_transfer_params": ASK} | changes)
    assert status == 200
    return answer["kv_transfer_params"]


async def decoded(http, worker, parameters, **changes):
    return await post(http, worker, BODY | {"kv_transfer_params": parameters} | changes)


async def test_nixl_a_prompt_is_handed_over_and_not_computed_again(http):
    async with pools() as (prefill, decode):
        _status, whole = await post(http, prefill, BODY)
        parameters = await prefilled(http, prefill)
        assert prefill.stats()["held_prompts"] == 1
        status, answer = await decoded(http, decode, parameters)
        assert status == 200
        assert answer["choices"] == whole["choices"]
        usage = answer["usage"]
        assert (
            usage["prompt_tokens_details"]["cached_tokens"] == parameters["remote_prefill_cached_tokens"] > 0
        )
        stats = decode.stats()
        assert stats["computed_prompt_tokens"] == 1
        assert (stats["transfers"], stats["transferred_tokens"]) == (1, usage["prompt_tokens"])
        assert (stats["poisoned"], stats["died"], prefill.stats()["held_prompts"]) == (0, 0, 0)


async def test_nixl_what_decode_holds_is_not_transferred_again(http):
    async with pools() as (prefill, decode):
        await decoded(http, decode, await prefilled(http, prefill))
        before = decode.stats()["transferred_tokens"]
        await decoded(http, decode, await prefilled(http, prefill))
        assert decode.stats()["transferred_tokens"] - before < 16


async def test_nixl_a_plain_request_is_answered_by_either(http):
    async with pools() as workers:
        for worker in workers:
            status, answer = await post(http, worker, BODY)
            assert status == 200
            assert "kv_transfer_params" not in answer


async def test_nixl_a_streamed_prefill_tells_no_parameters_and_holds_its_blocks(http):
    async with pools() as (prefill, _decode):
        body = BODY | {"max_tokens": 1, "stream": True, "kv_transfer_params": ASK}
        async with http.post(prefill.url + "/v1/completions", json=body) as response:
            assert b"kv_transfer_params" not in await response.read()
        assert prefill.stats()["held_prompts"] == 1


async def test_nixl_parameters_of_use_once(http):
    async with pools() as (prefill, decode):
        parameters = await prefilled(http, prefill)
        assert (await decoded(http, decode, parameters))[0] == 200
        assert (await decoded(http, decode, parameters))[0] == 200
        assert decode.stats()["poisoned"] == 1


async def test_nixl_a_lease_ends(http):
    async with pools(lease_seconds=0.05) as (prefill, decode):
        parameters = await prefilled(http, prefill)
        await eventually(lambda: prefill.stats()["leases_expired"] == 1)
        assert prefill.stats()["held_prompts"] == 0
        assert (await decoded(http, decode, parameters))[0] == 200
        assert decode.stats()["poisoned"] == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_nixl_another_engine_under_the_address_fails_the_load(http, stream):
    async with pools() as (prefill, decode):
        await prefill.fault("wrong_engine_id", count=1)
        parameters = await prefilled(http, prefill)
        body = BODY | {"kv_transfer_params": parameters, "stream": stream}
        async with http.post(decode.url + "/v1/completions", json=body) as response:
            text = await response.text()
        assert response.status == (200 if stream else 500)
        assert "Internal server error" in text
        assert text.endswith("data: [DONE]\n\n") == stream
        assert decode.stats()["failed_transfers"] == 1
        assert (await decoded(http, decode, await prefilled(http, prefill)))[0] == 200


async def test_nixl_a_prefill_worker_that_started_anew_is_another_engine(http):
    async with pools() as (prefill, decode):
        parameters = await prefilled(http, prefill)
        await prefill.fault("restart")
        assert (await decoded(http, decode, parameters))[0] == 500
        assert decode.stats()["died"] == 0


async def test_nixl_an_unreachable_engine_fails_the_load_after_a_while(http):
    async with pools() as (prefill, decode):
        parameters = await prefilled(http, prefill)
        assert (await decoded(http, decode, parameters | {"remote_port": 1}))[0] == 500


@pytest.mark.parametrize("missing", ["remote_host", "remote_engine_id", "remote_block_ids"])
async def test_nixl_without_a_parameter_it_hangs_and_dies_when_the_client_leaves(http, missing):
    async with pools() as (prefill, decode):
        parameters = await prefilled(http, prefill)
        del parameters[missing]
        request = asyncio.ensure_future(decoded(http, decode, parameters))
        await eventually(lambda: decode.stats()["active_requests"] == 1)
        request.cancel()
        await eventually(lambda: not decode.is_alive)
        assert decode.stats()["died"] == 1
        await decode.fault("clear")
        assert (await post(http, decode, BODY))[0] == 200


async def test_nixl_a_longer_prompt_kills(http):
    async with pools() as (prefill, decode):
        parameters = await prefilled(http, prefill)
        status, _answer = await decoded(http, decode, parameters, prompt=PROMPT + "more and more")
        assert status == 500
        await eventually(lambda: not decode.is_alive)
        assert decode.stats()["died"] == 1


@pytest.mark.parametrize("prompt", [PROMPT[:-10], PROMPT.replace("baba", "dada")])
async def test_nixl_another_prompt_poisons(http, prompt):
    async with pools() as (prefill, decode):
        parameters = await prefilled(http, prefill)
        assert (await decoded(http, decode, parameters, prompt=prompt))[0] == 200
        assert decode.stats()["poisoned"] == 1


async def test_nixl_a_client_that_leaves_during_the_transfer_lets_the_blocks_go(http):
    async with pools() as (prefill, decode):
        await decode.fault("slow_transfer", factor=1e6)
        parameters = await prefilled(http, prefill)
        request = asyncio.ensure_future(decoded(http, decode, parameters))
        await eventually(lambda: decode.stats()["active_requests"] == 1)
        request.cancel()
        await eventually(lambda: prefill.stats()["held_prompts"] == 0)


async def test_nixl_dropped_parameters(http):
    async with pools() as (prefill, _decode):
        await prefill.fault("drop_parameter", count=1, parameter="remote_host")
        assert "remote_host" not in await prefilled(http, prefill)
        await prefill.fault("drop_parameter", count=1)
        assert await prefilled(http, prefill) is None
        assert "remote_host" in await prefilled(http, prefill)


async def mooncake_parameters(http, prefill, transfer_id="xfer-1"):
    address = f"http://127.0.0.1:{prefill.bootstrap_port}"
    async with http.get(f"{address}/query") as response:
        ranks = await response.json()
    return {
        "do_remote_decode": False,
        "do_remote_prefill": True,
        "transfer_id": transfer_id,
        "remote_bootstrap_addr": address,
        "remote_engine_id": ranks["0"]["engine_id"],
    }


@pytest.mark.parametrize("decode_first", [False, True])
async def test_mooncake_joins_both_legs_by_their_id(http, decode_first):
    async with pools("mooncake", meeting_seconds=10.0) as (prefill, decode):
        parameters = await mooncake_parameters(http, prefill)
        ask = ASK | {"transfer_id": "xfer-1"}
        if decode_first:
            leg = asyncio.ensure_future(decoded(http, decode, parameters))
            await eventually(lambda: decode.stats()["active_requests"] == 1)
            assert await prefilled_plainly(http, prefill, ask)
            status, _answer = await leg
        else:
            assert await prefilled_plainly(http, prefill, ask)
            status, _answer = await decoded(http, decode, parameters)
        assert status == 200
        assert decode.stats()["transfers"] == 1
        assert decode.stats()["computed_prompt_tokens"] == 1
        assert prefill.stats()["held_prompts"] == 0


async def prefilled_plainly(http, prefill, ask):
    status, answer = await post(http, prefill, BODY | {"max_tokens": 1, "kv_transfer_params": ask})
    return status == 200 and "kv_transfer_params" not in answer


async def test_mooncake_without_a_prefill_the_load_fails(http):
    async with pools("mooncake", meeting_seconds=0.02) as (prefill, decode):
        parameters = await mooncake_parameters(http, prefill)
        assert (await decoded(http, decode, parameters))[0] == 500
        assert (await decoded(http, decode, parameters | {"remote_engine_id": "former"}))[0] == 500
        assert decode.stats()["died"] == 0


async def test_mooncake_asserts_roles(http):
    async with pools("mooncake") as (prefill, decode):
        parameters = await mooncake_parameters(http, prefill)
        assert (await post(http, decode, BODY | {"kv_transfer_params": ASK}))[0] == 500
        assert (await decoded(http, prefill, parameters))[0] == 500
        await eventually(lambda: not prefill.is_alive and not decode.is_alive)
        assert prefill.stats()["died"] == decode.stats()["died"] == 1


async def test_a_shared_store_is_found_by_content(http):
    async with pools("store") as (prefill, decode):
        assert (await post(http, prefill, BODY | {"max_tokens": 1}))[0] == 200
        status, answer = await post(http, decode, BODY)
        assert status == 200
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 96
        assert decode.stats()["transferred_tokens"] == 96
        assert decode.stats()["computed_prompt_tokens"] == answer["usage"]["prompt_tokens"] - 96


SGLANG = {"layout": NEWEST["sglang"]}


def meeting(prefill, room=4611686018427387904):
    return {"bootstrap_host": "127.0.0.1", "bootstrap_port": prefill.bootstrap_port, "bootstrap_room": room}


@pytest.mark.parametrize("order", ["prefill first", "decode first"])
async def test_sglang_both_meet_in_a_room(http, order):
    async with pools(**SGLANG, meeting_seconds=10.0) as (prefill, decode):
        body = BODY | meeting(prefill)
        first, second = (prefill, decode) if order == "prefill first" else (decode, prefill)
        leg = asyncio.ensure_future(post(http, first, body))
        await eventually(lambda: first.stats()["active_requests"] == 1)
        answers = {second: await post(http, second, body), first: await leg}
        assert [answers[worker][0] for worker in (prefill, decode)] == [200, 200]
        assert answers[prefill][1]["usage"]["completion_tokens"] == 1
        assert answers[decode][1]["usage"]["completion_tokens"] == 5
        assert decode.stats()["transfers"] == 1
        assert decode.stats()["computed_prompt_tokens"] == 1
        assert prefill.stats()["held_prompts"] == 0


async def test_sglang_refuses_plain_requests(http):
    async with pools(**SGLANG) as workers:
        for worker in workers:
            assert (await post(http, worker, BODY))[0] == 500
            assert worker.stats()["plain_refused"] == 1


async def test_sglang_tells_its_role_and_its_port(http):
    async with pools(**SGLANG) as (prefill, decode):
        for worker, mode in ((prefill, "prefill"), (decode, "decode")):
            async with http.get(worker.url + "/server_info") as response:
                info = await response.json()
            assert info["disaggregation_mode"] == mode
            assert info["disaggregation_bootstrap_port"] == worker.bootstrap_port


async def test_sglang_one_side_alone_gives_up_after_a_while(http):
    async with pools(**SGLANG, meeting_seconds=0.02) as (prefill, decode):
        assert (await post(http, prefill, BODY | meeting(prefill)))[0] == 500
        assert (await post(http, decode, BODY | meeting(prefill)))[0] == 500
        assert prefill.stats()["computed_prompt_tokens"] == 0


@pytest.mark.parametrize("room", [6, 7])
async def test_sglang_the_room_says_the_rank(http, room):
    async with pools(**SGLANG, data_parallel_size=2) as (prefill, decode):
        body = BODY | meeting(prefill, room)
        (first, _), (second, _) = await asyncio.gather(post(http, prefill, body), post(http, decode, body))
        assert (first, second) == (200, 200)
        assert prefill.stats()["ranks"][room % 2]["computed_prompt_tokens"] > 0


async def test_sglang_a_rank_that_decode_does_not_know_is_another_room(http):
    async with pools(**SGLANG, data_parallel_size=2, meeting_seconds=0.05) as (prefill, decode):
        body = BODY | meeting(prefill, 6)
        lost = await asyncio.gather(
            post(http, prefill, body | {"routed_dp_rank": 1}), post(http, decode, body)
        )
        assert [status for status, _answer in lost] == [500, 500]
        told = {"disagg_prefill_dp_rank": 1}
        met = await asyncio.gather(
            post(http, prefill, body | {"routed_dp_rank": 1}), post(http, decode, body | told)
        )
        assert [status for status, _answer in met] == [200, 200]


async def test_sglang_another_prompt_poisons(http):
    async with pools(**SGLANG) as (prefill, decode):
        body = BODY | meeting(prefill)
        other = body | {"prompt": PROMPT.replace("baba", "dada")}
        await asyncio.gather(post(http, prefill, body), post(http, decode, other))
        assert decode.stats()["poisoned"] == 1


@pytest.mark.parametrize(
    ("fault", "field"),
    [
        ({"fault": "restart", "ranks": 0}, "ranks"),
        ({"fault": "restart", "ranks": 65}, "ranks"),
        ({"fault": "slow", "factor": 0}, "factor"),
        ({"fault": "slow_transfer", "factor": -1.5}, "factor"),
        ({"fault": "drop_events", "count": -1}, "count"),
        ({"fault": "error_mid_stream", "after_tokens": 0}, "after_tokens"),
        ({"fault": "misreport", "block_size": -16}, "block_size"),
        ({"fault": "explode"}, "fault"),
        ({"fault": "clear", "worker": 9}, "worker"),
    ],
)
async def test_a_fault_that_makes_no_sense_names_its_field(http, fault, field):
    async with pools() as (prefill, _decode):
        async with http.post(prefill.url + "/mock/fault", json=fault) as response:
            answer = await response.json()
        assert response.status == 400
        assert answer["error"]["param"] == field
        assert field in answer["error"]["message"]
        assert prefill.num_incarnations == 1
