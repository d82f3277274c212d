"""What both workers are sent for one request, byte for byte, and what its client sees of it."""

from __future__ import annotations

import orjson
import pytest

from tests.support.pools import last, pools, prompt_of

PROMPT = prompt_of(300)
ODD = (
    b'{ "model":"mock",\n\t"prompt" : "%b", "max_tokens":3, "temperature":0.10000000000000000555,'
    b' "seed": 12345678901234567890 , "x":"\\u00e9\\ud83d\\ude00" }'
) % PROMPT.encode()
"""Spaces, numbers and escapes that no JSON writer would give back."""


async def post(fleet, data, path="/v1/completions", **headers):
    async with fleet.client.session.post(
        fleet.client.url(path), data=data, headers={name.replace("_", "-"): v for name, v in headers.items()}
    ) as response:
        body = await response.read()
        assert response.status == 200, body
        return response, body


def members_behind(client: bytes, sent: bytes) -> dict:
    """What was added before the last brace; all else is the client's."""
    stem = client.rstrip()[:-1].rstrip()
    assert sent.startswith(stem)
    added = sent[len(stem) :].lstrip()
    assert added.startswith(b",")
    return orjson.loads(b"{" + added[1:])


async def test_nixl_both_bodies_are_the_clients_and_a_few_members():
    async with pools() as fleet:
        await post(fleet, ODD, x_request_id="mine")
        prefill, decode = last(fleet.prefill[0]), last(fleet.decode[0])
        ask = members_behind(ODD, prefill.body)
        assert (ask["max_tokens"], ask["stream"]) == (1, False)
        assert ask["kv_transfer_params"]["do_remote_decode"] is True
        added = members_behind(ODD, decode.body)
        assert set(added) == {"kv_transfer_params"}
        assert added["kv_transfer_params"]["do_remote_prefill"] is True
        assert added["kv_transfer_params"]["remote_prefill_cached_tokens"] == 0


async def test_nixl_parameters_are_passed_on_whole():
    """What the prefill worker tells is in the decode worker's request, key by key in its order."""
    async with pools() as fleet:
        await post(fleet, ODD)
        told = members_behind(ODD, last(fleet.decode[0]).body)["kv_transfer_params"]
        assert list(told)[:4] == [
            "do_remote_prefill", "do_remote_decode", "remote_block_ids", "remote_engine_id",
        ]  # fmt: skip
        assert told["transfer_mode"] == "pull"


async def test_both_legs_have_one_id_and_the_client_keeps_its_own():
    async with pools(disagg="always") as fleet:
        ids = set()
        for _ in range(2):
            response, _body = await post(fleet, ODD, x_request_id="mine")
            assert response.headers["x-request-id"] == "mine"
            legs = {last(worker).headers["x-request-id"] for worker in (fleet.decode[0], fleet.prefill[0])}
            assert len(legs) == 1
            ids |= legs
        assert len(ids) == 2, "no two requests share one"
        assert all("mine" in leg for leg in ids)


async def test_mooncake_an_id_joins_the_legs():
    async with pools("vllm", connector="mooncake") as fleet:
        await post(fleet, ODD)
        ask = members_behind(ODD, last(fleet.prefill[0]).body)["kv_transfer_params"]
        told = members_behind(ODD, last(fleet.decode[0]).body)["kv_transfer_params"]
        assert ask["transfer_id"] == told["transfer_id"]
        assert told["remote_bootstrap_addr"] == f"http://127.0.0.1:{fleet.prefill[0].bootstrap_port}"
        assert fleet.decode[0].stats()["transfers"] == 1


async def test_a_shared_store_needs_no_fields():
    async with pools("vllm", connector="store") as fleet:
        await post(fleet, ODD)
        assert last(fleet.decode[0]).body == ODD
        assert members_behind(ODD, last(fleet.prefill[0]).body)["max_tokens"] == 1
        assert fleet.decode[0].stats()["transferred_tokens"] > 0


async def test_sglang_both_bodies_are_equal():
    async with pools("sglang") as fleet:
        await post(fleet, ODD)
        prefill, decode = last(fleet.prefill[0]), last(fleet.decode[0])
        assert prefill.body == decode.body
        added = members_behind(ODD, decode.body)
        assert set(added) == {"bootstrap_host", "bootstrap_port", "bootstrap_room"}
        assert added["bootstrap_port"] == fleet.prefill[0].bootstrap_port
        assert 0 <= added["bootstrap_room"] < 2**63


async def test_sglang_the_room_says_the_rank():
    """However it is drawn: the prefill server's rank, and no other, gets the prompt."""
    async with pools("sglang", data_parallel_size=2) as fleet:
        for salt in range(6):
            reply = await fleet.ask(prompt_of(200, salt))
            assert reply.status == 200
            room = members_room(last(fleet.prefill[0]).body)
            assert reply.prefill_worker == f"p0@{room % 2}"


def members_room(body: bytes) -> int:
    return orjson.loads(body)["bootstrap_room"]


async def test_a_request_that_stays_is_sent_as_it_came():
    async with pools(disagg="never") as fleet:
        await post(fleet, ODD)
        assert last(fleet.decode[0]).body == ODD
        assert not fleet.prefill[0].received


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("chat", [False, True])
async def test_streams_are_as_without_pools(engine, chat):
    path = "/v1/chat/completions" if chat else "/v1/completions"
    body = {"model": "mock", "max_tokens": 5, "stream": True, "stream_options": {"include_usage": True}}
    body |= {"messages": [{"role": "user", "content": PROMPT}]} if chat else {"prompt": PROMPT}
    texts = []
    for settings in (
        {"num_prefill": 1, "num_decode": 1},
        {"num_prefill": 0, "num_decode": 0, "num_whole": 1},
    ):
        async with pools(engine, **settings) as fleet:
            _response, stream = await post(fleet, orjson.dumps(body), path)
            events = [line[6:] for line in stream.split(b"\n\n") if line]
            assert events[-1] == b"[DONE]"
            parsed = [orjson.loads(event) for event in events[:-1]]
            assert parsed[-1]["usage"]["completion_tokens"] == 5
            texts.append([_text(choice) for event in parsed for choice in event["choices"]])
    assert texts[0] == texts[1]
    assert len(texts[0]) >= 5


def _text(choice):
    return choice["text"] if "text" in choice else choice["delta"].get("content")


async def test_usage_tells_what_the_prefill_worker_had_cached():
    async with pools(disagg="always") as fleet:
        await fleet.warm(fleet.prefill[0], prompt_of(320))
        reply = await fleet.ask(prompt_of(480))
        assert reply.json["usage"]["prompt_tokens"] == 480
        assert reply.json["usage"]["prompt_tokens_details"]["cached_tokens"] == 320


@pytest.mark.parametrize("field", ["kv_transfer_params", "bootstrap_room", "bootstrap_host"])
async def test_what_only_a_gateway_may_say_is_refused(field):
    async with pools() as fleet:
        reply = await fleet.ask(PROMPT, **{field: {} if field == "kv_transfer_params" else 1})
        assert reply.status == 400
        assert field in reply.body.decode()
        assert not any(worker.received for worker in fleet.fleet.workers)


async def test_a_fleet_without_pools_passes_such_fields_on():
    async with pools(num_prefill=0, num_decode=0, num_whole=1) as fleet:
        reply = await fleet.ask(PROMPT, kv_transfer_params={"do_remote_decode": False})
        assert reply.status == 200
        assert b"kv_transfer_params" in last(fleet.whole[0]).body
