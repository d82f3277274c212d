"""Block sizes that differ between workers, are told by nobody, or told wrongly, over the whole gateway."""

from __future__ import annotations

import asyncio
import itertools
import logging
from dataclasses import replace

import pytest

from loadgen.mock_worker import MockFleet
from router.config import WorkerConfig
from tests.support.serving import FAST, row_of, serving, settled, with_events
from tests.support.waiting import eventually

COARSE = replace(FAST, block_tokens=32)
WIDE = replace(FAST, block_tokens=64)


def words(name: str, num: int = 100) -> str:
    return " ".join(f"{name}{i}" for i in range(num))


async def expected_and_reported(client, prompt: str, request_id: str) -> tuple[int, int]:
    _, answer = await client.complete(prompt, x_request_id=request_id)
    _, explained = await client.admin(f"/explain?request_id={request_id}")
    reported = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return explained["decisions"][0]["expected_cached_tokens"], reported


async def test_workers_with_blocks_of_16_and_of_32_share_one_pool() -> None:
    """Each is matched by its own blocks, and what it will report is known to the token."""
    async with MockFleet(1, engine=FAST) as fine, MockFleet(1, engine=COARSE) as coarse:
        workers = [*fine.workers, *coarse.workers]
        async with serving(with_events(workers)) as client:
            seen = set()
            for turn in range(12):
                prompt = f"{words(f'p{turn % 4}')} {words(f'more{turn}', turn)}"
                holder, _ = await client.complete(f"{prompt} {words(f'new{turn}', 60)}")
                seen.add(holder)
                await settled(client.gateway, *workers)
                expected, reported = await expected_and_reported(client, prompt, f"turn-{turn}")
                assert expected == reported > 0
                await settled(client.gateway, *workers)
            assert seen == {"w0", "w1"}
            assert [row_of(client.gateway, w)["index"]["block_tokens"] for w in ("w0", "w1")] == [16, 32]


@pytest.mark.parametrize("told", [None, 16], ids=["not told", "told wrongly"])
async def test_a_block_size_is_discovered_from_the_events_not_guessed(told, caplog) -> None:
    caplog.set_level(logging.INFO, "kvgate")
    async with MockFleet(1, engine=COARSE) as fleet:
        mock = fleet.workers[0]
        await mock.fault("misreport", block_size=told)
        async with serving(with_events([mock])) as client:
            await client.complete(words("a", 200))
            await settled(client.gateway, mock)
            row = row_of(client.gateway, "w0")
            assert (row["engine"]["block_tokens"], row["index"]["block_tokens"]) == (told, 32)
            assert (row["trust"]["level"], row["index"]["num_blocks"] > 0) == ("exact", True)
            expected, reported = await expected_and_reported(client, words("a", 200), "again")
            assert expected == reported > 0
            client.gateway.core.check()
    said = [each for each in caplog.records if "stores blocks of 32 tokens" in each.getMessage()]
    assert len(said) == 1
    assert said[0].levelno == (logging.INFO if told is None else logging.WARNING)
    assert ("its server said 16: going by its events" in said[0].getMessage()) == (told is not None)


async def test_what_a_late_gateway_learns_from_a_replay_has_the_right_blocks() -> None:
    async with MockFleet(1, engine=COARSE) as fleet:
        mock = fleet.workers[0]
        async with serving(with_events([mock])) as client:
            await client.complete(words("a", 200))
        await mock.fault("misreport", block_size=16)
        async with serving(with_events([mock])) as client:
            await settled(client.gateway, mock)
            expected, reported = await expected_and_reported(client, words("a", 200), "r")
            assert expected == reported > 0


async def test_a_restart_with_other_blocks_is_followed() -> None:
    """At the same place, first an engine with blocks of 32, then one with blocks of 64; both say nothing."""
    async with MockFleet(1, engine=COARSE) as fleet:
        place = fleet.workers[0]
        await place.fault("misreport")
        worker = WorkerConfig(url=place.url, name="w0", kv_events=place.events_endpoint)
        async with serving([worker]) as client:
            await client.complete(words("a", 200))
            await eventually(lambda: row_of(client.gateway, "w0")["index"]["block_tokens"] == 32)
            await place.fault("die")
            port = int(place.url.rpartition(":")[2])
            async with MockFleet(1, engine=WIDE, port=port, events_port=place.events_port) as successor:
                heir = successor.workers[0]
                await heir.fault("misreport")
                await eventually(
                    lambda: (
                        row_of(client.gateway, "w0")["state"] == "healthy"
                        and "history before" in row_of(client.gateway, "w0")["trust"]["reason"]
                    ),
                    what="the successor is served and heard",
                )
                # Without a replay what is published before the subscription has arrived is lost.
                async with asyncio.timeout(10):
                    for prompt in itertools.count():
                        await client.complete(words(f"p{prompt}", 200))
                        if row_of(client.gateway, "w0")["index"]["block_tokens"] == 64:
                            break
                client.gateway.core.check()
