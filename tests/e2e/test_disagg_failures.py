"""Hand-overs that fail, over real sockets: the client gets its answer while a way remains, engines are idle
afterwards, and nothing is sent that would kill or poison one."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from router.limits import RelayLimits
from tests.support.pools import FAST, pools, prompt_of
from tests.support.serving import counted
from tests.support.waiting import eventually

PROMPT = prompt_of(300)
SLOW = dataclasses.replace(FAST, speedup=1.0)
IMPATIENT = RelayLimits(first_byte_seconds=0.2)


def failures(fleet, **labels):
    return counted(fleet.client.gateway, "kvgate_hand_over_failures_total", **labels)


@pytest.mark.parametrize("fault", ["die", "refuse", "internal_error", "hang"])
async def test_a_prefill_worker_that_fails_is_replaced_by_another(fault):
    async with pools(num_prefill=2, limits=IMPATIENT) as fleet:
        for salt in range(4):
            await fleet.ask(prompt_of(200, salt))
        await fleet.prefill[0].fault(fault)
        for salt in range(10, 16):
            reply = await fleet.ask(prompt_of(200, salt))
            assert (reply.status, reply.prefill_worker) == (200, "p1")
        await fleet.prefill[0].fault("clear")


@pytest.mark.parametrize("fault", ["die", "refuse", "internal_error", "hang"])
async def test_without_another_the_decode_worker_computes_the_prompt(fault):
    async with pools(limits=IMPATIENT) as fleet:
        await fleet.prefill[0].fault(fault)
        reply = await fleet.ask(PROMPT)
        assert (reply.status, reply.worker, reply.prefill_worker) == (200, "d0", None)
        assert fleet.decode[0].stats()["computed_prompt_tokens"] == 300
        await fleet.prefill[0].fault("clear")


async def test_without_fallback_it_fails():
    async with pools(disagg_fallback=False) as fleet:
        await fleet.prefill[0].fault("internal_error")
        reply = await fleet.ask(PROMPT)
        assert reply.status in (502, 503)


@pytest.mark.parametrize(
    "parameter", [None, "remote_host", "remote_engine_id", "remote_port", "remote_block_ids", "tp_size"]
)
async def test_incomplete_parameters_are_not_sent(parameter):
    async with pools(held=1) as fleet:
        await fleet.prefill[0].fault("drop_parameter", parameter=parameter)
        reply = await fleet.ask(PROMPT)
        assert (reply.status, reply.worker, reply.prefill_worker) == (200, "d0", None)
        assert b"kv_transfer_params" not in fleet.decode[0].received[-1].body
        assert failures(fleet, worker="p0", leg="prefill", code="incomplete") == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", ["wrong_engine_id", "transfer_fails"])
async def test_a_decode_worker_that_refuses_is_asked_without_parameters(fault, stream):
    async with pools(held=int(fault == "wrong_engine_id")) as fleet:
        worker = fleet.prefill[0] if fault == "wrong_engine_id" else fleet.decode[0]
        await worker.fault(fault)
        reply = await fleet.ask(PROMPT, stream=stream)
        assert (reply.status, reply.worker) == (200, "d0")
        assert b"error" not in reply.body
        bodies = [received.body for received in fleet.decode[0].received]
        assert [b"kv_transfer_params" in body for body in bodies] == [True, False]
        assert failures(fleet, worker="d0", leg="decode") == 1


async def test_a_lease_that_is_over_is_not_used():
    async with pools(hand_over_lease=0.0, held=1) as fleet:
        reply = await fleet.ask(PROMPT)
        assert (reply.status, reply.worker) == (200, "d0")
        assert b"kv_transfer_params" not in fleet.decode[0].received[-1].body
        assert failures(fleet, code="lease_over") == 1


async def test_a_slow_transfer_is_waited_for():
    async with pools() as fleet:
        await fleet.decode[0].fault("slow_transfer", factor=100.0)
        reply = await fleet.ask(PROMPT)
        assert (reply.status, reply.prefill_worker) == (200, "p0")
        assert len(fleet.decode[0].received) == 1


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
async def test_a_client_that_leaves_during_prefill(engine):
    async with pools(engine, model=SLOW) as fleet:
        await fleet.prefill[0].fault("slow", factor=1000.0)
        client = fleet.asking(PROMPT)
        await eventually(lambda: fleet.prefill[0].stats()["active_requests"] == 1)
        client.cancel()
        await eventually(lambda: fleet.prefill[0].stats()["active_requests"] == 0)
        await fleet.idle()
        await fleet.prefill[0].fault("clear")


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
async def test_a_client_that_leaves_during_the_transfer(engine):
    async with pools(engine) as fleet:
        await fleet.decode[0].fault("slow_transfer", factor=1e6)
        client = fleet.asking(PROMPT)
        await eventually(lambda: fleet.prefill[0].stats()["finished"] == 1)
        await eventually(lambda: fleet.decode[0].stats()["active_requests"] == 1)
        client.cancel()
        await fleet.idle()


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
async def test_a_client_that_leaves_during_decode(engine):
    async with pools(engine, model=SLOW) as fleet:
        client = fleet.asking(PROMPT, max_tokens=5000, stream=True)
        await eventually(lambda: fleet.decode[0].stats()["generation_tokens"] > 3)
        client.cancel()
        await fleet.idle()
        assert fleet.decode[0].stats()["generation_tokens"] < 5000


@pytest.mark.parametrize("fault", ["die", "refuse", "internal_error"])
async def test_sglang_a_prefill_worker_that_fails_is_replaced_and_its_partner_set_free(fault):
    async with pools("sglang", num_prefill=2) as fleet:
        await fleet.prefill[0].fault(fault)
        for salt in range(6):
            reply = await fleet.ask(prompt_of(200, salt))
            assert (reply.status, reply.worker) == (200, "d0")
            assert reply.prefill_worker == "p1"
        await fleet.prefill[0].fault("clear")


async def test_sglang_without_prefill_workers_a_whole_one_serves():
    async with pools("sglang", num_whole=1) as fleet:
        await fleet.prefill[0].fault("die")
        for salt in range(4):
            reply = await fleet.ask(prompt_of(200, salt))
            assert (reply.status, reply.worker) == (200, "w0")
        await fleet.prefill[0].fault("clear")


@pytest.mark.parametrize(("engine", "fault"), [("vllm", "die"), ("sglang", "die"), ("sglang", "refuse")])
async def test_a_decode_worker_that_fails_is_replaced_by_another(engine, fault):
    async with pools(engine, num_decode=2, mock={"lease_seconds": 0.3}) as fleet:
        await fleet.decode[0].fault(fault)
        for salt in range(4):
            reply = await fleet.ask(prompt_of(200, salt))
            assert (reply.status, reply.worker) == (200, "d1")
        await fleet.decode[0].fault("clear")
        await eventually(lambda: not any(w.stats()["held_prompts"] for w in fleet.prefill))


async def test_a_prefill_pool_that_empties_and_comes_back():
    async with pools() as fleet:
        assert (await fleet.ask(prompt_of(200, 1))).prefill_worker == "p0"
        await fleet.prefill[0].fault("die")
        assert (await fleet.ask(prompt_of(200, 2))).status == 200
        await fleet.prefill[0].fault("clear")
        salts = iter(range(3, 200))

        async def handed_over() -> bool:
            return (await fleet.ask(prompt_of(200, next(salts)))).prefill_worker == "p0"

        async with asyncio.timeout(10):
            while not await handed_over():
                await asyncio.sleep(0.02)  # until a probe has found it


async def test_ready_only_while_something_can_be_answered():
    """Prefill workers alone answer nobody."""
    async with pools() as fleet:
        gateway = fleet.client.gateway
        assert gateway.core.can_serve()
        await fleet.decode[0].fault("die")
        await eventually(lambda: not gateway.core.can_serve(), what="not ready")
        assert (await fleet.client.get("/readyz"))[0] == 503
        await fleet.decode[0].fault("clear")
        await eventually(gateway.core.can_serve, what="ready again")
        assert (await fleet.ask(PROMPT)).status == 200


async def test_a_mixed_fleet_uses_all_of_its_workers():
    async with pools(num_prefill=1, num_decode=1, num_whole=1) as fleet:
        replies = await asyncio.gather(*(fleet.ask(prompt_of(300, salt)) for salt in range(12)))
        assert {reply.status for reply in replies} == {200}
        assert {reply.worker for reply in replies} == {"d0", "w0"}
        for reply in replies:
            assert reply.prefill_worker == ("p0" if reply.worker == "d0" else None)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
async def test_many_at_once(engine):
    async with pools(engine, num_prefill=2, num_decode=2) as fleet:
        asks = [fleet.ask(prompt_of(100 + salt, salt % 5), stream=salt % 2 == 0) for salt in range(60)]
        replies = await asyncio.gather(*asks)
        assert {reply.status for reply in replies} == {200}


@pytest.mark.parametrize("connector", ["nixl", "mooncake"])
async def test_a_prefill_worker_that_started_anew_is_another_engine(connector):
    """Requests that meet the change are answered; those that follow are handed over again."""
    async with pools(connector=connector, mock={"lease_seconds": 0.2}) as fleet:
        assert (await fleet.ask(prompt_of(200, 1))).prefill_worker == "p0"
        await fleet.prefill[0].fault("restart")
        salts = iter(range(2, 200))
        before = fleet.decode[0].stats()["transfers"]
        async with asyncio.timeout(10):
            while fleet.decode[0].stats()["transfers"] == before:
                assert (await fleet.ask(prompt_of(200, next(salts)))).status == 200
        await eventually(lambda: fleet.prefill[0].stats()["held_prompts"] == 0)
