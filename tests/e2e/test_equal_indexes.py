"""Whoever follows the same engines holds the same, whenever it came and whatever befell its connections:
gateways and index servers, compared by their dumps."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

import pytest

from indexer.warm_start import WarmStart
from loadgen.mock_process import MockWorker
from loadgen.mock_worker import MockFleet
from router.config import WorkerConfig
from tests.support.index_client import IndexClient, running_index
from tests.support.serving import FAST, Client, row_of, serving, settled, trust_of, with_events
from tests.support.tcp_line import tcp_line
from tests.support.waiting import eventually


@pytest.fixture
async def mocks():
    async with MockFleet(2, engine=FAST) as fleet:
        yield fleet.workers


async def ask(client: Client, first: int, last: int) -> None:
    """Prompts of these numbers, spread over the workers."""
    for number in range(first, last):
        await client.complete(" ".join(f"p{number}w{i}" for i in range(80)))


def gateway(workers: Sequence[WorkerConfig], **options):
    return serving(workers, policy="round_robin", **options)


async def dump_of(client: Client, mocks: Sequence[MockWorker]) -> str:
    """With all that the engines have sent in it."""
    await settled(client.gateway, *mocks)
    await eventually(lambda: all(trust_of(client.gateway, f"w{i}") == "exact" for i in range(len(mocks))))
    return await client.admin_text("/dump")


async def follow(index: IndexClient, mocks: Sequence[MockWorker]) -> None:
    for worker in mocks:
        body = {
            "name": f"w{worker.index}",
            "events": worker.events_endpoint,
            "replay": worker.replay_endpoint,
            "model": "mock",
        }
        status, answer = await index.post("/register", body)
        assert status == 201, answer


async def dump_of_index(index: IndexClient, mocks: Sequence[MockWorker]) -> str:
    def is_in() -> bool:
        rows = {worker.name: (trust.level, stats) for worker, _, trust, stats in index.service.workers()}
        return all(
            rows[f"w{each.index}"][0] == "exact"
            and rows[f"w{each.index}"][1].last_sequence == each.num_event_messages - 1
            for each in mocks
        )

    await eventually(is_in, what="every event is in")
    return await index.dump()


async def test_a_gateway_that_starts_later_holds_the_same(mocks) -> None:
    async with gateway(with_events(mocks)) as first:
        await ask(first, 0, 25)
        async with gateway(with_events(mocks)) as second:
            await ask(second, 25, 50)
            dump = await dump_of(first, mocks)
            assert len(dump.splitlines()) > 250
            assert dump == await dump_of(second, mocks)


async def test_a_cut_of_the_event_transport_leaves_no_trace(mocks) -> None:
    """The second gateway hears one engine over a line that is cut while requests run."""
    async with tcp_line(mocks[0].events_port) as line, gateway(with_events(mocks)) as first:
        over_line = [
            replace(worker, kv_events=f"tcp://127.0.0.1:{line.port}") if worker.name == "w0" else worker
            for worker in with_events(mocks)
        ]
        async with gateway(over_line) as second:
            await ask(first, 0, 5)
            assert await dump_of(first, mocks) == await dump_of(second, mocks)
            await line.cut()
            await eventually(lambda: trust_of(second.gateway, "w0") == "recovering", what="the cut is seen")
            await ask(first, 5, 15)
            await line.mend()
            await eventually(lambda: trust_of(second.gateway, "w0") == "exact", what="it is mended")
            await ask(second, 15, 20)
            assert await dump_of(first, mocks) == await dump_of(second, mocks)


async def test_replay_alone_is_enough(mocks) -> None:
    """The live messages of one engine are lost for everybody, but for the last: it shows the gap."""
    async with gateway(with_events(mocks)) as first, gateway(with_events(mocks)) as second:
        await ask(first, 0, 2)
        await settled(first.gateway, *mocks)
        await mocks[0].fault("drop_events")
        await ask(first, 2, 12)
        await mocks[0].fault("clear")
        await ask(second, 12, 14)
        assert await dump_of(first, mocks) == await dump_of(second, mocks)
        for each in (first, second):
            assert row_of(each.gateway, "w0")["events"]["num_gaps"] == 1


async def test_two_gateways_an_index_server_and_its_peer_hold_the_same(mocks) -> None:
    """The peer joins last, and begins with what the index server knows."""
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(gateway(with_events(mocks)))
        index = await stack.enter_async_context(running_index())
        await follow(index, mocks)
        await ask(first, 0, 12)
        second = await stack.enter_async_context(gateway(with_events(mocks)))
        await ask(second, 12, 20)
        await dump_of_index(index, mocks)
        warm_start = WarmStart()
        await warm_start.fetch(index.url, None)
        peer = await stack.enter_async_context(running_index(warm_start=warm_start))
        await follow(peer, mocks)
        await ask(first, 20, 25)
        dump = await dump_of(first, mocks)
        assert len(dump.splitlines()) > 120
        assert dump == await dump_of(second, mocks)
        assert dump == await dump_of_index(index, mocks)
        assert dump == await dump_of_index(peer, mocks)
        assert all(
            stats.num_messages < worker.num_event_messages
            for (_, _, _, stats), worker in zip(peer.service.workers(), mocks, strict=True)
        ), "the past was not replayed"


async def test_a_stale_snapshot_of_an_engine_that_restarted_shows_nothing_of_it(mocks, tmp_path) -> None:
    options = {"snapshot": str(tmp_path / "index")}
    async with gateway(with_events(mocks), **options) as before:
        await ask(before, 0, 10)
        await settled(before.gateway, *mocks)
    await mocks[0].fault("restart")
    async with gateway(with_events(mocks), **options) as after, gateway(with_events(mocks)) as cold:
        await ask(after, 10, 14)
        dump = await dump_of(cold, mocks)
        assert dump == await dump_of(after, mocks)
        assert '"w1"' in dump
