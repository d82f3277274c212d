"""The whole gateway in this process, wired as `kvgate serve` wires it, before a fleet of mock workers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp
import orjson

from loadgen.engine import EngineSettings
from loadgen.mock_process import MockWorker
from router.app import Gateway
from router.config import Settings, WorkerConfig
from router.limits import RelayLimits
from tests.support.waiting import eventually

FAST = EngineSettings(speedup=50.0)
"""Steps of a third of a millisecond: tests are about order, not about time."""

Row = dict[str, Any]


class Client:
    """A client of the public port and of the admin port."""

    def __init__(self, gateway: Gateway, session: aiohttp.ClientSession) -> None:
        self.gateway = gateway
        self.session = session

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.gateway.port}{path}"

    def admin_url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.gateway.admin_port}{path}"

    async def post(self, path: str, body: Row, **headers: str) -> tuple[int, Row, dict[str, str]]:
        """Status, JSON body, headers (lower case)."""
        async with self.session.post(
            self.url(path), json=body, headers={k.replace("_", "-"): v for k, v in headers.items()}
        ) as response:
            content = orjson.loads(await response.read())
            return response.status, content, {k.lower(): v for k, v in response.headers.items()}

    async def get(self, path: str) -> tuple[int, Row]:
        async with self.session.get(self.url(path)) as response:
            return response.status, orjson.loads(await response.read())

    async def complete(self, text: str, *, max_tokens: int = 2, **headers: str) -> tuple[str, Row]:
        """A completion that must succeed: who answered, and the answer."""
        body = {"model": "mock", "prompt": text, "max_tokens": max_tokens}
        status, answer, got = await self.post("/v1/completions", body, **headers)
        assert status == 200, answer
        return got["x-kvgate-worker"], answer

    async def stream(self, text: str, *, max_tokens: int = 2) -> tuple[str, list[str]]:
        """A streamed completion: who answered, and the data of its events."""
        body = {"model": "mock", "prompt": text, "max_tokens": max_tokens, "stream": True}
        async with self.session.post(self.url("/v1/completions"), json=body) as response:
            assert response.status == 200, await response.text()
            lines = [line async for line in response.content]
            events = [line[6:].strip().decode() for line in lines if line.startswith(b"data: ")]
            return response.headers["x-kvgate-worker"], events

    async def admin(self, path: str, method: str = "GET", body: Row | None = None) -> tuple[int, Row]:
        async with self.session.request(method, self.admin_url(path), json=body) as response:
            return response.status, orjson.loads(await response.read())

    async def admin_text(self, path: str) -> str:
        async with self.session.get(self.admin_url(path)) as response:
            assert response.status == 200
            return await response.text()


def row_of(gateway: Gateway, worker_id: str) -> Row:
    """The worker's row of /workers; empty before discovery has yielded it."""
    return next((row for row in gateway.fleet.views() if row["id"] == worker_id), {})


def trust_of(gateway: Gateway, worker_id: str) -> str:
    trust = row_of(gateway, worker_id).get("trust")
    return trust["level"] if trust else "none"


def joined(gateway: Gateway, server: str) -> bool:
    """All ranks of it have joined, and their indexes are settled."""
    rows = [row for row in gateway.fleet.views() if row["server"] == server]
    return bool(rows) and all(trust_of(gateway, row["id"]) in ("exact", "predicted") for row in rows)


def counted(gateway: Gateway, name: str, **labels: str) -> float:
    """The sum of a metric's samples that carry these labels."""
    return sum(
        sample.value
        for family in gateway.metrics.registry.collect()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


async def settled(gateway: Gateway, *workers: MockWorker) -> None:
    """Every event message that these engines, named w0, w1 and so on, have sent is in the index."""
    for i, worker in enumerate(workers):
        for rank in worker.ranks:
            worker_id = f"w{i}@{rank.number}" if len(worker.ranks) > 1 else f"w{i}"
            await eventually(
                lambda worker_id=worker_id, rank=rank: (
                    rank.num_messages == 0
                    or row_of(gateway, worker_id)["events"]["last_sequence"] == rank.num_messages - 1
                ),
                what=f"events of {worker_id} are in",
            )


async def at_rest(gateway: Gateway) -> None:
    """Nothing is booked, and the core's books balance."""
    await eventually(
        lambda: all(view.num_active_requests == 0 for view in gateway.core.workers()), what="no bookings"
    )
    gateway.core.check()


def with_events(workers: Sequence[MockWorker]) -> tuple[WorkerConfig, ...]:
    return tuple(
        WorkerConfig(
            url=worker.url, name=f"w{i}", kv_events=worker.events_endpoint, kv_replay=worker.replay_endpoint
        )
        for i, worker in enumerate(workers)
    )


def without_events(workers: Sequence[MockWorker]) -> tuple[WorkerConfig, ...]:
    return tuple(WorkerConfig(url=worker.url, name=f"w{i}") for i, worker in enumerate(workers))


@contextlib.asynccontextmanager
async def serving(
    workers: Sequence[WorkerConfig],
    *,
    limits: RelayLimits | None = None,
    until_ready: bool = True,
    **settings: Any,
) -> AsyncIterator[Client]:
    """A gateway before these workers. With `until_ready`, all have joined and their indexes are settled."""
    options = {
        "load_monitor_interval": 0.05,
        "health_check_interval_secs": 0.1,
        "health_check_timeout_secs": 2.0,
    } | settings
    gateway = Gateway(
        Settings(host="127.0.0.1", port=0, admin_port=0, workers=tuple(workers), **options), limits=limits
    )
    await gateway.start()
    try:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            client = Client(gateway, session)
            if until_ready:
                for worker in workers:
                    await eventually(
                        lambda worker=worker: joined(gateway, worker.name), what=f"{worker.name} joins"
                    )
            yield client
            await at_rest(gateway)
    finally:
        await gateway.stop(0.0)
