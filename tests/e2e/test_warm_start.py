"""A start that is warm: from a peer, or from a gateway's own file."""

from __future__ import annotations

import pytest

from loadgen.mock_worker import MockFleet
from tests.support.index_client import running_index
from tests.support.serving import FAST, row_of, serving, with_events
from tests.support.waiting import eventually


@pytest.fixture
async def mocks():
    async with MockFleet(2, engine=FAST) as fleet:
        yield fleet.workers


async def settled(client, workers) -> None:
    """Every event message that the engines have sent is in the gateway's index, and it is exact."""

    def is_in() -> bool:
        rows = [row_of(client.gateway, f"w{worker.index}") for worker in workers]
        return all(
            row.get("events")
            and row["trust"]["level"] == "exact"
            and row["events"]["last_sequence"] in (worker.num_event_messages - 1,)
            for row, worker in zip(rows, workers, strict=True)
        )

    await eventually(is_in, what="every event is in")


async def ask(client, first: int, last: int) -> None:
    for number in range(first, last):
        await client.complete(" ".join(f"p{number}w{i}" for i in range(80)))


async def test_a_gateway_and_an_index_server_that_joins_from_it(mocks) -> None:
    async with serving(with_events(mocks), policy="round_robin") as first:
        await ask(first, 0, 10)
        await settled(first, mocks)
        peer = first.admin_url("")
        async with (
            serving(with_events(mocks), policy="round_robin", warm_from=peer) as second,
            running_index() as index,
        ):
            for worker in mocks:
                body = {
                    "name": f"w{worker.index}",
                    "events": worker.events_endpoint,
                    "replay": worker.replay_endpoint,
                    "model": "mock",
                }
                assert (await index.post("/register", body))[0] == 201
            await ask(second, 10, 15)
            for each in (first, second):
                await settled(each, mocks)
            assert row_of(second.gateway, "w0")["events"]["num_messages"] < mocks[0].num_event_messages
            dump = await first.admin_text("/dump")
            assert dump == await second.admin_text("/dump")
            await eventually(
                lambda: all(trust.level == "exact" for _, _, trust, _ in index.service.workers())
            )
            assert dump == await index.dump()


async def test_a_gateway_that_comes_back_goes_on_from_its_snapshot(mocks, tmp_path) -> None:
    options = {"policy": "round_robin", "snapshot": str(tmp_path / "index.snapshot")}
    async with serving(with_events(mocks), **options) as gateway:
        await ask(gateway, 0, 10)
        await settled(gateway, mocks)
        before = await gateway.admin_text("/dump")
    async with serving(with_events(mocks), **options) as gateway:
        await settled(gateway, mocks)
        assert await gateway.admin_text("/dump") == before
        assert row_of(gateway.gateway, "w0")["events"]["num_messages"] <= 2, "only the last is asked for"
