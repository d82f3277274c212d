"""The whole gateway in this process before mock pools that hand over, and what must be true in the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import orjson

from loadgen.engine import EngineSettings
from loadgen.mock_hand_over import HandOverConfig
from loadgen.mock_process import MockWorker, Received
from loadgen.mock_worker import MockFleet
from loadgen.tokenizer import WORDS
from loadgen.transfer import TransferModel
from loadgen.wire import NEWEST
from router.config import WorkerConfig
from tests.support.serving import Client, Row, counted, row_of, serving
from tests.support.waiting import eventually

FAST = EngineSettings(speedup=200.0)
TRANSFER = TransferModel(gbps=10_000.0, setup_ms=0.1)
ROOM = 77


class Pools:
    """A client of the gateway, and the workers behind it: `p0`, `d0`, `w0` and so on."""

    def __init__(self, client: Client, fleet: MockFleet, engine: str) -> None:
        self.client = client
        self.fleet = fleet
        self.engine = engine
        self.prefill, self.decode, self.whole = fleet.prefill, fleet.decode, fleet.whole

    async def ask(self, prompt: str, *, path: str = "/v1/completions", **changes: Any) -> Reply:
        body = {"model": "mock", "prompt": prompt, "max_tokens": 3} | changes
        async with self.client.session.post(self.client.url(path), data=orjson.dumps(body)) as response:
            headers = {name.lower(): value for name, value in response.headers.items()}
            return Reply(response.status, headers, await response.read())

    def asking(self, prompt: str, **changes: Any) -> asyncio.Task[Reply]:
        """To be cancelled: a client that leaves."""
        return asyncio.ensure_future(self.ask(prompt, **changes))

    async def warm(self, worker: MockWorker, prompt: str) -> None:
        """Has a worker hold a prompt, past the gateway; the gateway knows of it."""
        body = {"model": "mock", "prompt": prompt, "max_tokens": 1}
        if self.engine == "sglang" and worker in self.decode:
            meeting = {"bootstrap_host": "127.0.0.1", "bootstrap_port": self.prefill[0].bootstrap_port}
            body |= meeting | {"bootstrap_room": ROOM}
            await asyncio.gather(self._post(worker, body), self._post(self.prefill[0], body))
        else:
            await self._post(worker, body)
        await self.settled()
        self.forget_received()

    async def settled(self) -> None:
        """Every event of every worker is in the index."""
        for name, worker in self.named().items():
            for rank in worker.ranks:
                await eventually(
                    lambda name=name, rank=rank: (
                        not rank.num_messages
                        or row_of(self.client.gateway, name)["events"]["last_sequence"]
                        == rank.num_messages - 1
                    ),
                    what=f"events of {name} are in",
                )

    def named(self) -> dict[str, MockWorker]:
        groups = (("p", self.prefill), ("d", self.decode), ("w", self.whole))
        return {f"{letter}{i}": worker for letter, group in groups for i, worker in enumerate(group)}

    def forget_received(self) -> None:
        for worker in self.fleet.workers:
            worker.received.clear()

    def decisions(self, **labels: str) -> float:
        return counted(self.client.gateway, "kvgate_disagg_decisions_total", **labels)

    async def idle(self, *, held: int = 0) -> None:
        """No engine has anything to do, and keeps nothing for another but what is expected."""
        await eventually(
            lambda: all(worker.stats()["active_requests"] == 0 for worker in self.fleet.workers),
            what="engines are idle",
        )
        assert sum(worker.stats()["held_prompts"] for worker in self.fleet.workers) == held

    def assert_unharmed(self) -> None:
        """Nothing that was sent would have killed or poisoned a real engine."""
        for worker in self.fleet.workers:
            stats = worker.stats()
            assert [stats[name] for name in ("poisoned", "died", "plain_refused")] == [0, 0, 0]

    async def _post(self, worker: MockWorker, body: Row) -> None:
        async with self.client.session.post(worker.url + "/v1/completions", json=body) as response:
            assert response.status == 200, await response.text()
            await response.read()


class Reply:
    """What the client got."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    @property
    def worker(self) -> str:
        return self.headers["x-kvgate-worker"]

    @property
    def prefill_worker(self) -> str | None:
        return self.headers.get("x-kvgate-prefill-worker")

    @property
    def json(self) -> Row:
        content: Row = orjson.loads(self.body)
        return content


def prompt_of(num_tokens: int, salt: int = 0) -> str:
    """A text of so many tokens, BOS included; all of one salt begin alike."""
    return " ".join(WORDS[(salt * 977 + i * 7) % len(WORDS)] for i in range(num_tokens - 1))


def last(worker: MockWorker) -> Received:
    return worker.received[-1]


@contextlib.asynccontextmanager
async def pools(
    engine: str = "vllm",
    *,
    num_prefill: int = 1,
    num_decode: int = 1,
    num_whole: int = 0,
    connector: str = "nixl",
    model: EngineSettings = FAST,
    mock: dict[str, Any] | None = None,
    data_parallel_size: int = 1,
    unharmed: bool = True,
    held: int = 0,
    **settings: Any,
) -> AsyncIterator[Pools]:
    """Afterwards all are idle, nothing is booked, and (with `unharmed`) no engine was harmed."""
    hand_over = {"meeting_seconds": 5.0, "handshake_seconds": 0.05} | (mock or {})
    fleet = MockFleet(
        num_whole,
        num_prefill=num_prefill,
        num_decode=num_decode,
        engine=model,
        layout=NEWEST[engine],
        hand_over=HandOverConfig(connector=connector, transfer=TRANSFER, bootstrap_port=0, **hand_over),
        records_requests=True,
        data_parallel_size=data_parallel_size,
    )
    async with fleet:
        options = {"kv_connector": connector, "policy": "kv"} | settings
        async with serving(_configured(fleet), **options) as client:
            running = Pools(client, fleet, engine)
            yield running
            await running.idle(held=held)
            if unharmed:
                running.assert_unharmed()


def _configured(fleet: MockFleet) -> Sequence[WorkerConfig]:
    groups = (("p", "prefill", fleet.prefill), ("d", "decode", fleet.decode), ("w", "both", fleet.whole))
    return [
        WorkerConfig(
            url=worker.url,
            name=f"{letter}{i}",
            role=role,
            bootstrap_port=worker.bootstrap_port,
            kv_events=worker.events_endpoint,
            kv_replay=worker.replay_endpoint,
        )
        for letter, role, group in groups
        for i, worker in enumerate(group)
    ]
