"""Event endpoints that can't be opened: the worker is served, watched and predicted; they are tried again."""

from __future__ import annotations

import asyncio
import logging
import socket
from dataclasses import replace

import pytest

import indexer.subscription
from loadgen.mock_worker import MockFleet
from router.config import WorkerConfig
from router.fleet.watch import WorkerWatch
from tests.support.serving import row_of, serving, trust_of
from tests.support.waiting import eventually


@pytest.fixture
async def worker():
    async with MockFleet(1) as fleet:
        yield fleet.workers[0]


@pytest.fixture
def taken():
    """An endpoint whose port someone has."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        yield holder, f"bind:tcp://127.0.0.1:{holder.getsockname()[1]}"


def lines(caplog, level: int = logging.WARNING) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


@pytest.mark.parametrize(
    "endpoint", ["bind:tcp://10.9.9.9:7801", "bind:tcp://nosuch.invalid:5557", "bind:ipc:///nope/x"]
)
async def test_a_refused_endpoint_leaves_a_predicted_worker_that_is_watched(worker, endpoint, caplog) -> None:
    refused = WorkerConfig(url=worker.url, name="w0", kv_events=endpoint)
    async with serving([refused], until_ready=False) as client:
        await eventually(lambda: trust_of(client.gateway, "w0") == "predicted", what="it has joined")
        assert f"can't listen to {endpoint!r}: " in row_of(client.gateway, "w0")["trust"]["reason"]
        await client.complete("The same words, again and again. " * 20)
        await client.complete("The same words, again and again. " * 20)
        assert client.gateway.core.decisions()[0].expected_cached_tokens > 0, "our decisions are believed"
        await worker.fault("die")
        await eventually(lambda: row_of(client.gateway, "w0")["state"] != "healthy", what="it is watched")
        await worker.fault("clear")
        await eventually(lambda: row_of(client.gateway, "w0")["state"] == "healthy", what="it is back")
    told = [line for line in lines(caplog) if "can't listen" in line]
    assert len(told) == 1
    assert lines(caplog, logging.ERROR) == []


async def test_a_port_that_becomes_free_is_listened_to(worker, taken, caplog, monkeypatch) -> None:
    monkeypatch.setattr(indexer.subscription, "REFUSED_SECONDS", 0.05)
    caplog.set_level(logging.INFO, "kvgate.fleet")
    holder, endpoint = taken
    async with serving([], until_ready=False) as client:
        body = {"url": worker.url, "name": "w0", "kv_events": endpoint}
        status, answer = await asyncio.wait_for(client.admin("/workers", "POST", body), 5)
        assert (status, answer["worker"]["trust"]["level"]) == (201, "predicted")
        assert f"index predicted until {endpoint} can be opened" in "\n".join(lines(caplog, logging.INFO))
        holder.close()
        await eventually(lambda: trust_of(client.gateway, "w0") == "recovering", what="it is listened to")
        client.gateway.core.check()


async def test_a_look_that_fails_by_our_mistake_is_not_the_last(worker, monkeypatch, caplog) -> None:
    look, num_mishaps = WorkerWatch.look, 0

    async def failing(self: WorkerWatch, now: float) -> object:
        nonlocal num_mishaps
        if num_mishaps < 3:
            num_mishaps += 1
            raise RuntimeError("a mistake")
        return await look(self, now)

    monkeypatch.setattr(WorkerWatch, "look", failing)
    monkeypatch.setattr("router.fleet.watching.RETRY_SECONDS", 0.01)
    async with serving([WorkerConfig(url=worker.url, name="w0")], until_ready=False) as client:
        await eventually(lambda: row_of(client.gateway, "w0").get("state") == "healthy", what="it goes on")
    assert lines(caplog, logging.ERROR) == ["worker w0: a look at it failed; the next one is due"]


async def test_another_endpoint_of_the_same_worker_ends_the_refusal_of_the_first(worker, taken) -> None:
    """Engines announce their endpoints, and others after a restart: the worker stays the same."""
    _, refused = taken
    async with serving(
        [WorkerConfig(url=worker.url, name="w0", kv_events=refused)], until_ready=False
    ) as client:
        fleet = client.gateway.fleet
        await eventually(lambda: trust_of(client.gateway, "w0") == "predicted", what="it has joined")
        (member,) = fleet.members
        member.watch.spec = replace(member.watch.spec, kv_events=worker.events_endpoint)
        fleet.suspect("w0")
        await eventually(
            lambda: trust_of(client.gateway, "w0") in ("recovering", "exact"), what="it is heard"
        )
