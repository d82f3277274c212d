"""Mooncake's bootstrap servers: asked once, and again after a failure."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from policies.types import Role, Transfer, Worker
from router.engines import bootstrap
from router.engines.bootstrap import BootstrapServers
from router.engines.sessions import WorkerSessions
from router.errors import WorkerUnavailable
from tests.support.certificates import system_trust
from tests.support.fake_worker import FakeWorker

ENGINES = (
    b'{"0": {"engine_id": "e0", "worker_addr": {"0": {"0": "10.0.0.1:7"}}},'
    b' "1": {"engine_id": "e1", "worker_addr": {}}}'
)


@pytest.fixture
async def servers():
    async with WorkerSessions(system_trust()) as sessions:
        yield BootstrapServers(sessions)


def worker_at(server: FakeWorker, dp_rank: int | None = None, name: str = "p") -> Worker:
    transfer = Transfer(protocol="mooncake", port=urlsplit(server.url).port)
    return Worker(id=name, url="http://127.0.0.1:1", role=Role.PREFILL, dp_rank=dp_rank, transfer=transfer)


async def test_each_rank_has_an_engine_and_is_asked_once(servers) -> None:
    async with FakeWorker({"GET /query": (200, ENGINES)}) as server:
        for name, rank, engine_id in (("p", None, "e0"), ("p@0", 0, "e0"), ("p@1", 1, "e1")):
            worker = worker_at(server, rank, name)
            assert [await servers.engine_id(worker) for _ in range(2)] == [engine_id] * 2
        assert len(server.bodies("/query")) == 3


async def test_after_a_failure_it_is_asked_again(servers) -> None:
    async with FakeWorker({"GET /query": (200, ENGINES)}) as server:
        await servers.engine_id(worker_at(server))
        server.answers["GET /query"] = (200, ENGINES.replace(b"e0", b"restarted"))
        assert await servers.engine_id(worker_at(server)) == "e0"
        servers.forget("p")
        servers.forget("never asked")
        assert await servers.engine_id(worker_at(server)) == "restarted"


async def test_what_is_kept_has_a_bound(servers, monkeypatch) -> None:
    monkeypatch.setattr(bootstrap, "ENGINE_IDS_KEPT", 2)
    async with FakeWorker({"GET /query": (200, ENGINES)}) as server:
        for name in ("a", "b", "c", "a"):
            await servers.engine_id(worker_at(server, name=name))
        assert len(server.bodies("/query")) == 4


@pytest.mark.parametrize(
    "answer",
    [(200, b""), (200, b"[]"), (200, b"{}"), (200, b'{"0": {}}'), (200, b"\xff"), (500, ENGINES), None],
)
async def test_a_server_that_names_no_engine_is_said_and_not_remembered(answer, servers) -> None:
    async with FakeWorker({"GET /query": answer}) as server:
        with pytest.raises(WorkerUnavailable, match="The bootstrap server of p names no engine") as failed:
            await servers.engine_id(worker_at(server))
        assert failed.value.code == "bootstrap_failed"
        server.answers["GET /query"] = (200, ENGINES)
        assert await servers.engine_id(worker_at(server)) == "e0"
