"""Two legs at the same time (SGLang): they meet in a room, and fail together."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from policies.types import Worker
from router.core.disagg import DisaggRules, Mode
from tests.support.legs import decode, prefill, refusing
from tests.support.raw_worker import RawWorker, Script, WorkerSide, answering, json_answer
from tests.support.relay import gateway, post
from tests.support.waiting import eventually

ALWAYS = DisaggRules(mode=Mode.ALWAYS)
GOOD = answering(json_answer(b'{"good":true}'))


def pair(p: RawWorker, d: RawWorker) -> tuple[Worker, Worker]:
    return prefill(p, "sglang"), decode(d, "sglang")


async def waits(side: WorkerSide) -> None:
    await side.peer_left()


async def resets(side: WorkerSide) -> None:
    side.reset()


async def test_both_get_the_same_body_with_a_room_of_its_own() -> None:
    async with RawWorker(GOOD) as p, RawWorker(GOOD) as d, gateway(*pair(p, d), disagg=ALWAYS) as running:
        for _ in range(2):
            answer = await running.ask(post())
            assert (answer.status, answer.value("x-kvgate-prefill-worker")) == (200, p.id)
        await eventually(lambda: running.proxy.upstream.num_idle >= 2)
        assert [r.body for r in p.requests] == [r.body for r in d.requests]
        rooms = [orjson.loads(request.body)["bootstrap_room"] for request in d.requests]
        assert len(set(rooms)) == 2


async def test_the_prefill_answer_is_read_to_its_end_when_decode_ends_first() -> None:
    release = asyncio.Event()

    async def slow(side: WorkerSide) -> None:
        await release.wait()
        await side.send(json_answer())

    async with RawWorker(slow) as p, RawWorker(GOOD) as d, gateway(*pair(p, d), disagg=ALWAYS) as running:
        assert (await running.ask(post())).status == 200
        assert p.num_open == 1
        release.set()
        await running.at_rest()
        assert running.counted("kvgate_prefill_leg_seconds_count", worker=p.id) == 1
        assert p.num_open == 1, "a connection whose answer was read is used again"


async def test_a_prefill_answer_that_never_ends_is_given_up() -> None:
    async with (
        RawWorker(waits) as p,
        RawWorker(GOOD) as d,
        gateway(*pair(p, d), disagg=ALWAYS, first_byte_seconds=0.05) as running,
    ):
        assert (await running.ask(post())).status == 200
        await p.sides[0].gone.wait()


async def test_closing_ends_a_prefill_answer_that_is_still_read() -> None:
    async with RawWorker(waits) as p, RawWorker(GOOD) as d, gateway(*pair(p, d), disagg=ALWAYS) as running:
        assert (await running.ask(post())).status == 200
        running.proxy.legs.close()
        await p.sides[0].gone.wait()


@pytest.mark.parametrize("fails", [resets, answering(refusing(500)), answering(refusing(429))])
async def test_a_failed_prefill_leg_aborts_the_decode_leg(fails: Script) -> None:
    async with (
        RawWorker(fails) as p,
        RawWorker(waits) as d,
        gateway(*pair(p, d), disagg=ALWAYS) as running,
    ):
        answer = await running.ask(post())
        assert (answer.status, b"prefill" in answer.body) == (502, True)
        await d.sides[0].gone.wait()
        assert len(d.requests) == 1
        assert running.counted("kvgate_hand_over_failures_total", worker=p.id, leg="prefill") == 1


async def test_another_prefill_worker_is_tried_in_another_room() -> None:
    async def meets(side: WorkerSide) -> None:
        if orjson.loads(side.request.body)["bootstrap_room"] in met:
            await side.send(json_answer(b'{"good":true}'))
        else:
            await side.peer_left()

    async def computes(side: WorkerSide) -> None:
        met.add(orjson.loads(side.request.body)["bootstrap_room"])
        await side.send(json_answer())

    met: set[int] = set()
    async with (
        RawWorker(resets) as bad,
        RawWorker(computes) as good,
        RawWorker(GOOD) as d,
        gateway(*pair(bad, d), prefill(good, "sglang"), disagg=ALWAYS) as running,
    ):
        for _ in range(2):
            assert (await running.ask(post())).status == 200


@pytest.mark.parametrize("fails", [resets, answering(refusing(500)), answering(refusing(400))])
async def test_a_failed_decode_leg_aborts_the_prefill_leg(fails: Script) -> None:
    async with RawWorker(waits) as p, RawWorker(fails) as d, gateway(*pair(p, d), disagg=ALWAYS) as running:
        assert (await running.ask(post())).status in (400, 502)
        await eventually(lambda: p.num_open == 0)


async def test_neither_is_sent_anything_when_one_is_not_there() -> None:
    async with RawWorker(GOOD) as gone:
        pass
    async with RawWorker(GOOD) as other:
        async with gateway(*pair(gone, other), disagg=ALWAYS) as running:
            assert (await running.ask(post())).status == 502
            assert running.fleet.suspected == [gone.id]
        async with gateway(*pair(other, gone), disagg=ALWAYS) as running:
            assert (await running.ask(post())).status == 502
        assert other.requests == []
        await eventually(lambda: other.num_open == 0)


async def test_what_the_client_is_to_blame_for_comes_back_as_it_is() -> None:
    async with (
        RawWorker(answering(refusing(400))) as p,
        RawWorker(waits) as d,
        gateway(*pair(p, d), disagg=ALWAYS) as running,
    ):
        answer = await running.ask(post())
        assert (answer.status, answer.body) == (400, b'{"error":{"message":"no"}}')
        await d.sides[0].gone.wait()


async def test_a_client_that_leaves_stops_both() -> None:
    async with RawWorker(waits) as p, RawWorker(waits) as d, gateway(*pair(p, d), disagg=ALWAYS) as running:
        async with running.client() as client:
            await client.send(post())
            await eventually(lambda: p.requests and d.requests)
        await p.sides[0].gone.wait()
        await d.sides[0].gone.wait()
        await running.at_rest()
        assert running.counted("kvgate_client_gone_total", phase="waiting") == 1
