"""Two legs, one after the other (vLLM): what each worker is sent, and every way in which a leg fails.

After each test nothing is booked, no leg runs and no client is connected: the gateway's fixture looks.
"""

from __future__ import annotations

import asyncio

import orjson
import pytest

from router.config import Settings
from router.core.disagg import DisaggRules, Mode
from tests.support.legs import COMPUTED, PARAMETERS, computes, decode, has_parameters, prefill, refusing
from tests.support.raw_worker import (
    END_OF_CHUNKS,
    STREAM_HEAD,
    RawWorker,
    Script,
    WorkerSide,
    answering,
    chunk,
    event,
    json_answer,
)
from tests.support.relay import gateway, post
from tests.support.waiting import eventually

ALWAYS = DisaggRules(mode=Mode.ALWAYS)
GOOD = answering(json_answer(b'{"good":true}'))
BODY = b'{"model":"m","prompt":"p"}'


async def waits(side: WorkerSide) -> None:
    await side.peer_left()


async def closes(side: WorkerSide) -> None:
    side.close()


async def resets(side: WorkerSide) -> None:
    side.reset()


async def resets_in_its_answer(side: WorkerSide) -> None:
    await side.send(COMPUTED[:-40])
    side.reset()


async def answers_too_much(side: WorkerSide) -> None:
    await side.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99999999\r\n\r\n")
    for _ in range(17):
        await side.send(b" " * (1 << 20))
    await side.peer_left()


BROKEN: tuple[Script, ...] = (
    closes,
    resets,
    resets_in_its_answer,
    answers_too_much,
    answering(b"220 smtp ready\r\n\r\n"),
    answering(json_answer(b"no JSON")),
    answering(json_answer(b'{"choices":[]}')),
    answering(json_answer(b'{"kv_transfer_params":null}')),
    answering(json_answer(b'{"kv_transfer_params":{"do_remote_prefill":true}}')),
    *(answering(refusing(status)) for status in (408, 429, 500, 503)),
)


async def test_the_decode_worker_is_sent_what_the_prefill_worker_answered() -> None:
    stream = STREAM_HEAD + chunk(event("a")) + END_OF_CHUNKS
    async with (
        RawWorker(computes) as p,
        RawWorker(answering(stream)) as d,
        gateway(prefill(p), decode(d), disagg=ALWAYS) as running,
    ):
        extra = "X-Request-Id: mine\r\nX-Data-Parallel-Rank: 3\r\n"
        answer = await running.ask(post(extra=extra))
        assert answer.raw_body == chunk(event("a")) + END_OF_CHUNKS
        assert answer.value("x-kvgate-worker") == d.id
        assert answer.value("x-kvgate-prefill-worker") == p.id
        assert answer.value("x-request-id") == "mine"
        (asked,), (sent,) = p.requests, d.requests
        assert orjson.loads(asked.body)["max_tokens"] == 1
        assert sent.body == BODY[:-1] + b',"kv_transfer_params":' + PARAMETERS + b"}"
        assert asked.values("x-request-id") == sent.values("x-request-id")
        (leg_id,) = sent.values("x-request-id")
        assert leg_id.startswith(b"mine-")
        assert asked.values("x-data-parallel-rank") == sent.values("x-data-parallel-rank") == []
        assert running.counted("kvgate_prefill_leg_seconds_count", worker=p.id) == 1
        assert running.counted("kvgate_kv_transfer_seconds_count", worker=d.id) == 1
        assert running.counted("kvgate_hand_over_failures_total") == 0


async def test_no_two_requests_share_an_id_whatever_their_clients_say() -> None:
    async with (
        RawWorker(computes) as p,
        RawWorker(GOOD) as d,
        gateway(prefill(p), decode(d), disagg=ALWAYS) as running,
    ):
        for _ in range(3):
            await running.ask(post(extra="X-Request-Id: same\r\n"))
        assert len({request.values("x-request-id")[0] for request in d.requests}) == 3
        assert len(d.sides) == 1, "an open connection is used again"


@pytest.mark.parametrize("fails", BROKEN)
async def test_another_prefill_worker_is_asked_then_the_decode_worker_alone(fails: Script) -> None:
    async with (
        RawWorker(fails) as p1,
        RawWorker(fails) as p2,
        RawWorker(GOOD) as d,
        gateway(prefill(p1), prefill(p2), decode(d), disagg=ALWAYS) as running,
    ):
        answer = await running.ask(post())
        assert (answer.status, answer.body) == (200, b'{"good":true}')
        assert answer.value("x-kvgate-prefill-worker") is None
        assert [len(p1.requests), len(p2.requests)] == [1, 1]
        assert p1.requests[0].values("x-request-id") != p2.requests[0].values("x-request-id")
        assert [request.body for request in d.requests] == [BODY]
        for worker in (p1, p2):
            assert running.counted("kvgate_hand_over_failures_total", worker=worker.id, leg="prefill") == 1
        local = running.counted("kvgate_disagg_decisions_total", prefill="local", reason="prefill_failed")
        assert local == 1


async def test_a_second_prefill_worker_saves_the_hand_over() -> None:
    async with (
        RawWorker(closes) as bad,
        RawWorker(computes) as good,
        RawWorker(GOOD) as d,
        gateway(prefill(bad), prefill(good), decode(d), disagg=ALWAYS) as running,
    ):
        for _ in range(2):
            answer = await running.ask(post())
            assert answer.value("x-kvgate-prefill-worker") == good.id
        assert all(has_parameters(request.body) for request in d.requests)


async def test_a_prefill_worker_that_is_gone_is_suspect() -> None:
    async with RawWorker(computes) as gone:
        pass
    async with RawWorker(GOOD) as d, gateway(prefill(gone), decode(d), disagg=ALWAYS) as running:
        assert (await running.ask(post())).status == 200
        assert running.fleet.suspected == [gone.id]


async def test_a_silent_prefill_worker_is_given_up() -> None:
    async with (
        RawWorker(waits) as p,
        RawWorker(GOOD) as d,
        gateway(prefill(p), decode(d), disagg=ALWAYS, first_byte_seconds=0.05) as running,
    ):
        assert (await running.ask(post())).status == 200
        await p.sides[0].gone.wait()
        code = "first_byte_timeout"
        assert running.counted("kvgate_hand_over_failures_total", worker=p.id, code=code) == 1


async def test_without_fallback_the_error_says_what_is_lacking() -> None:
    rules = DisaggRules(mode=Mode.ALWAYS, fallback=False)
    async with (
        RawWorker(closes) as p,
        RawWorker(GOOD) as d,
        gateway(prefill(p), decode(d), disagg=rules) as running,
    ):
        answer = await running.ask(post())
        assert (answer.status, orjson.loads(answer.body)["error"]["code"]) == (503, "no_workers")
        assert b"--disagg-fallback" in answer.body
        assert d.requests == []


async def test_what_the_client_is_to_blame_for_comes_back_as_it_is() -> None:
    async with (
        RawWorker(answering(refusing(400))) as p,
        RawWorker(GOOD) as d,
        gateway(prefill(p), decode(d), disagg=ALWAYS) as running,
    ):
        answer = await running.ask(post())
        assert (answer.status, answer.body) == (400, b'{"error":{"message":"no"}}')
        assert d.requests == []


# The decode leg


def refusing_parameters(refusal: bytes) -> Script:
    async def script(side: WorkerSide) -> None:
        await side.send(refusal if has_parameters(side.request.body) else json_answer(b'{"good":true}'))

    return script


FAILED_LOAD = chunk(b'data: {"error":{"message":"Internal server error","code":500}}\n\n')


@pytest.mark.parametrize(
    "refusal",
    [refusing(500), refusing(503), STREAM_HEAD + FAILED_LOAD, STREAM_HEAD + FAILED_LOAD + END_OF_CHUNKS],
)
async def test_a_decode_worker_that_refuses_is_asked_once_more_without_parameters(refusal: bytes) -> None:
    settings = Settings(policy="round_robin", max_retries=0)
    async with (
        RawWorker(computes) as p,
        RawWorker(refusing_parameters(refusal)) as d,
        gateway(prefill(p), decode(d), disagg=ALWAYS, settings=settings) as running,
    ):
        answer = await running.ask(post())
        assert (answer.status, answer.body) == (200, b'{"good":true}')
        assert answer.value("x-kvgate-prefill-worker") is None
        assert [has_parameters(request.body) for request in d.requests] == [True, False]
        assert len(p.requests) == 1
        assert running.counted("kvgate_hand_over_failures_total", worker=d.id, leg="decode") == 1


async def test_it_is_the_same_decode_worker_whoever_s_turn_it_is() -> None:
    async with (
        RawWorker(computes) as p,
        RawWorker(refusing_parameters(refusing(500))) as d1,
        RawWorker(refusing_parameters(refusing(500))) as d2,
        gateway(prefill(p), decode(d1), decode(d2), disagg=ALWAYS) as running,
    ):
        assert (await running.ask(post())).status == 200
        assert sorted(len(worker.requests) for worker in (d1, d2)) == [0, 2]


async def test_a_refusal_without_parameters_is_the_client_s_answer() -> None:
    async with (
        RawWorker(computes) as p,
        RawWorker(answering(refusing(500))) as d,
        gateway(prefill(p), decode(d), disagg=ALWAYS) as running,
    ):
        assert (await running.ask(post())).status == 500
        assert len(d.requests) == 2


async def test_parameters_are_not_sent_after_their_lease() -> None:
    settings = Settings(policy="round_robin", hand_over_lease=0.0)
    async with (
        RawWorker(computes) as p,
        RawWorker(GOOD) as d,
        gateway(prefill(p), decode(d), disagg=ALWAYS, settings=settings) as running,
    ):
        assert (await running.ask(post())).status == 200
        assert [request.body for request in d.requests] == [BODY]
        assert running.counted("kvgate_hand_over_failures_total", leg="decode", code="lease_over") == 1


@pytest.mark.parametrize("ends", [closes, resets])
async def test_parameters_are_not_sent_again_when_the_connection_goes(ends: Script) -> None:
    """A new connection or one that idled: what was written may have been read."""

    async def script(side: WorkerSide) -> None:
        if side.num_requests == 1 and len(d1.sides) == 1:
            await side.send(json_answer(b'{"good":true}'))
        elif has_parameters(side.request.body):
            await ends(side)
        else:
            await side.send(json_answer(b'{"plain":true}'))

    async with (
        RawWorker(computes) as p,
        RawWorker(script) as d1,
        gateway(prefill(p), decode(d1), disagg=ALWAYS) as running,
    ):
        assert (await running.ask(post())).body == b'{"good":true}'
        assert (await running.ask(post())).body == b'{"plain":true}'
        assert [has_parameters(request.body) for request in d1.requests] == [True, True, False]


async def test_another_decode_worker_computes_the_prompt_itself() -> None:
    async with (
        RawWorker(computes) as p,
        RawWorker(resets) as d1,
        RawWorker(resets) as d2,
        RawWorker(GOOD) as d3,
        gateway(prefill(p), *map(decode, (d1, d2, d3)), disagg=ALWAYS) as running,
    ):
        for _ in range(3):
            answer = await running.ask(post())
            assert answer.value("x-kvgate-worker") == d3.id
        bodies = [request.body for worker in (d1, d2, d3) for request in worker.requests]
        assert sum(map(has_parameters, bodies)) == len(p.requests)


async def test_a_decode_worker_that_dies_in_its_stream_ends_it_with_an_error_event() -> None:
    async def dies(side: WorkerSide) -> None:
        await side.send(STREAM_HEAD + chunk(event("a")))
        side.reset()

    async with (
        RawWorker(computes) as p,
        RawWorker(dies) as d,
        gateway(prefill(p), decode(d), disagg=ALWAYS) as running,
    ):
        answer = await running.ask(post())
        assert answer.body.startswith(event("a"))
        assert b'"error"' in answer.body
        assert len(d.requests) == 1


# Leaving and draining


@pytest.mark.parametrize(
    ("prefills", "decodes", "phase"),
    [(waits, GOOD, "prefill"), (computes, waits, "waiting")],
)
async def test_a_client_that_leaves_stops_the_leg_under_way(
    prefills: Script, decodes: Script, phase: str
) -> None:
    async with (
        RawWorker(prefills) as p,
        RawWorker(decodes) as d,
        gateway(prefill(p), decode(d), disagg=ALWAYS) as running,
    ):
        async with running.client() as client:
            await client.send(post())
            worker = p if phase == "prefill" else d
            await eventually(lambda: worker.requests)
        await worker.sides[0].gone.wait()
        await running.at_rest()
        assert running.counted("kvgate_client_gone_total", phase=phase) == 1
        assert running.counted("kvgate_requests_total", outcome="client_gone") == 1


async def test_a_drain_ends_a_prefill_leg_that_takes_longer() -> None:
    async with (
        RawWorker(waits) as p,
        RawWorker(GOOD) as d,
        gateway(prefill(p), decode(d), disagg=ALWAYS) as running,
        running.client() as client,
    ):
        await client.send(post())
        await eventually(lambda: p.requests)
        assert await running.server.drain(0.01) is False
        await p.sides[0].gone.wait()
        assert await client.closed() == b""


async def test_a_drain_lets_a_request_take_both_legs() -> None:
    release = asyncio.Event()

    async def slow(side: WorkerSide) -> None:
        await release.wait()
        await side.send(COMPUTED)

    async with (
        RawWorker(slow) as p,
        RawWorker(GOOD) as d,
        gateway(prefill(p), decode(d), disagg=ALWAYS) as running,
        running.client() as client,
    ):
        await client.send(post())
        await eventually(lambda: p.requests)
        drained = asyncio.ensure_future(running.server.drain(10))
        await asyncio.sleep(0)
        release.set()
        assert (await client.answer()).body == b'{"good":true}'
        assert await drained is True
