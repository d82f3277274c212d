"""One mock worker with a process's life: incarnations, ports that stay, connections that can be reset,
faults.

The table of faults is in `mock_worker`; what the worker answers is in `mock_http`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
import zmq
from aiohttp import web

from indexer.events import KvEvent
from loadgen.engine import EngineSettings
from loadgen.held_ports import HeldPorts
from loadgen.mock_api import ApiError
from loadgen.mock_http import BODY_BYTES_MAX, EngineApi, Host, Identity, json_response
from loadgen.mock_ranks import MockRank, find_free_ports
from loadgen.mock_sglang import SglangApi
from loadgen.mock_vllm import VllmApi
from loadgen.wire import RELEASES, Layout

APIS: Mapping[str, Callable[[Host], EngineApi]] = {"vllm": VllmApi, "sglang": SglangApi}
"""By engine."""
REPLAY_PORT_OFFSET = 1000
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER with no time to linger: closing sends RST, as a killed process with unread data does."""
START_ATTEMPTS = 5
"""Ports that were free a moment ago are seldom taken twice."""
LISTEN_BACKLOG = 4096
"""Bursts of connections are the load client's business, not a fault of the mock."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FleetConfig:
    """Worker i listens on `port + i`; its rank r of N publishes on `events_port + i * N + r` and replays 1000
    ports above that; 0 lets the system choose."""

    engine: EngineSettings
    model: str
    adapters: tuple[str, ...]
    layout: Layout
    topic: str
    host: str
    port: int
    events_port: int
    num_ranks: int = 1


class FaultBody(msgspec.Struct, forbid_unknown_fields=True):
    """What is posted to `/mock/fault`."""

    fault: str
    worker: int | None = None
    count: int | None = None
    after_tokens: int = 1
    factor: float = 10.0
    block_size: int | None = None
    ranks: int | None = None


class MockWorker:
    """One worker. Its ports are chosen at the first start and kept over restarts."""

    identity: Identity

    def __init__(self, config: FleetConfig, index: int, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.index = index
        self.ranks: Sequence[MockRank] = ()
        """Of its last incarnation."""
        self.release = RELEASES[config.layout]
        self.topic = config.topic
        self.cut_after_tokens: int | None = None
        self.told_block_tokens: int | None = config.engine.block_tokens
        self.reports_miss = config.layout in (Layout.MAPS, Layout.BYTES)
        self.num_incarnations = 0
        self.events_port = config.events_port and config.events_port + index * config.num_ranks
        self.replay_port = self.events_port and self.events_port + REPLAY_PORT_OFFSET
        self._config = config
        self._num_ranks = config.num_ranks
        self._context = context
        self._port = config.port and config.port + index
        self._held_ports = HeldPorts(config.host)
        self._refuses = False
        self._not_hung = asyncio.Event()
        self._not_hung.set()
        self._request_numbers = itertools.count()
        self._turns = itertools.count()
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None

    @property
    def url(self) -> str:
        return f"http://{self._config.host}:{self._port}"

    @property
    def events_endpoint(self) -> str:
        """Of rank 0."""
        return f"tcp://{self._config.host}:{self.events_port}"

    @property
    def last_events_endpoint(self) -> str:
        """Of its last rank."""
        return f"tcp://{self._config.host}:{self.events_port + self._num_ranks - 1}"

    @property
    def replay_endpoint(self) -> str:
        return f"tcp://{self._config.host}:{self.replay_port}"

    @property
    def is_alive(self) -> bool:
        return self._site is not None

    @property
    def num_event_messages(self) -> int:
        """Messages that this incarnation's rank 0 has published, 0 when it is dead; the next one has this
        number."""
        return self.ranks[0].num_messages if self.is_alive else 0

    def next_request_id(self) -> str:
        return f"{self.index:02x}{next(self._request_numbers):014x}"

    def next_turn(self) -> int:
        return next(self._turns)

    def wall_seconds(self) -> float:
        return time.time()  # noqa: TID251 -- the mock is a shell: its events and answers carry wall time

    async def open(self, fault_handler: Handler) -> None:
        """Builds the HTTP application and starts the first incarnation."""
        api = APIS[self.release.engine](self)
        app = web.Application(middlewares=[self._faults, api.answer_errors], client_max_size=BODY_BYTES_MAX)
        api.add_routes(app)
        app.router.add_post("/mock/fault", fault_handler)
        app.router.add_get("/mock/stats", self._stats)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await self.start()

    async def close(self) -> None:
        await self.stop()
        self._held_ports.release()
        if self._runner is not None:
            await self._runner.cleanup()

    async def start(self) -> None:
        """A new incarnation: empty caches, event numbers from 0, a new start time."""
        assert self._runner is not None
        config = self._config
        self._held_ports.release()
        self.num_incarnations += 1
        self.identity = Identity(
            model=config.model,
            adapters=config.adapters,
            version=self.release.version,
            start_time=self.wall_seconds(),
        )
        await self._start_ranks()
        self._site = web.TCPSite(self._runner, config.host, self._port, backlog=LISTEN_BACKLOG)
        await self._site.start()
        self._port = self._runner.addresses[-1][1]

    async def _start_ranks(self) -> None:
        """On its ports; at first on free ones, and on others where somebody was quicker."""
        has_ports = bool(self.events_port)
        for attempts_left in reversed(range(START_ATTEMPTS)):
            if not has_ports:
                self.events_port = find_free_ports(self._config.host, 2 * self._num_ranks)
                self.replay_port = self.events_port + self._num_ranks
            self.ranks = [self._new_rank(number) for number in range(self._num_ranks)]
            try:
                await self._bind_ranks()
                return
            except zmq.ZMQError:
                if has_ports or not attempts_left:
                    raise
                for rank in self.ranks:
                    await rank.stop()

    async def _bind_ranks(self) -> None:
        place = f"tcp://{self._config.host}"
        for rank in self.ranks:
            await rank.start(
                f"{place}:{self.events_port + rank.number}", f"{place}:{self.replay_port + rank.number}"
            )

    def _new_rank(self, number: int) -> MockRank:
        config = self._config
        return MockRank(
            number,
            config.engine,
            layout=config.layout,
            topic=config.topic,
            context=self._context,
            wall_seconds=self.wall_seconds,
        )

    async def stop(self, *, spare: asyncio.Transport | None = None) -> None:
        """As if the process were killed, however far its start had come. `spare` is the one connection that
        may still be answered."""
        was_alive = self._site is not None
        if self._site is not None:
            await self._site.stop()
            self._site = None
            self._reset_connections(spare)
        for rank in self.ranks:
            await rank.stop()
        if was_alive:
            self._held_ports.hold(self._ports())

    def _ports(self) -> list[int]:
        firsts = (self.events_port, self.replay_port)
        return [self._port, *(first + number for first in firsts for number in range(self._num_ranks))]

    def publish(self, events: Sequence[KvEvent], *, rank: int = 0) -> None:
        """Sends the next event message of a rank."""
        self.ranks[rank].publish(events)

    async def fault(self, name: str, **options: float | None) -> None:
        """Sets a fault from the same process: `await worker.fault("drop_events", count=3)`."""
        await self.apply_fault(msgspec.convert({"fault": name, **options}, FaultBody))

    async def apply_fault(self, body: FaultBody, spare: asyncio.Transport | None = None) -> None:
        """Raises ApiError 400 for an unknown name."""
        apply = self._fault_table().get(body.fault)
        if apply is None:
            known = ", ".join(self._fault_table())
            raise ApiError(400, f"unknown fault {body.fault!r}; known: {known}", param="fault")
        await apply(body, spare)

    def stats(self) -> dict[str, Any]:
        """What `GET /mock/stats` answers."""
        ranks = [rank.stats() for rank in self.ranks]
        totals = {name: sum(each[name] for each in ranks) for name in ranks[0]}
        lags = {name: max(each[name] for each in ranks) for name in ("lag_seconds_mean", "lag_seconds_max")}
        return {"worker": self.index, "incarnation": self.num_incarnations, **totals, **lags, "ranks": ranks}

    # Faults

    def _fault_table(self) -> dict[str, Callable[[FaultBody, asyncio.Transport | None], Awaitable[None]]]:
        return {
            "die": self._die,
            "restart": self._restart,
            "hang": self._hang,
            "refuse": self._refuse,
            "drop_events": self._drop_events,
            "error_mid_stream": self._error_mid_stream,
            "slow": self._slow,
            "misreport": self._misreport,
            "clear": self._clear,
        }

    async def _die(self, _body: FaultBody, spare: asyncio.Transport | None) -> None:
        await self.stop(spare=spare)

    async def _restart(self, body: FaultBody, spare: asyncio.Transport | None) -> None:
        await self.stop(spare=spare)
        self._num_ranks = body.ranks or self._num_ranks
        await self.start()

    async def _hang(self, _body: FaultBody, _spare: asyncio.Transport | None) -> None:
        self._not_hung.clear()
        for rank in self.ranks:
            rank.driver.pause()

    async def _refuse(self, _body: FaultBody, _spare: asyncio.Transport | None) -> None:
        self._refuses = True

    async def _drop_events(self, body: FaultBody, _spare: asyncio.Transport | None) -> None:
        for rank in self.ranks:
            rank.publisher.drops_left = body.count

    async def _error_mid_stream(self, body: FaultBody, _spare: asyncio.Transport | None) -> None:
        self.cut_after_tokens = body.after_tokens

    async def _slow(self, body: FaultBody, _spare: asyncio.Transport | None) -> None:
        for rank in self.ranks:
            rank.model.slowdown = body.factor

    async def _misreport(self, body: FaultBody, _spare: asyncio.Transport | None) -> None:
        self.told_block_tokens = body.block_size

    async def _clear(self, _body: FaultBody, _spare: asyncio.Transport | None) -> None:
        self._refuses = False
        self.cut_after_tokens = None
        self.told_block_tokens = self._config.engine.block_tokens
        self._not_hung.set()
        if not self.is_alive:
            await self.start()
        for rank in self.ranks:
            rank.publisher.drops_left = 0
            rank.model.slowdown = 1.0
            rank.driver.resume()

    # HTTP and events

    @web.middleware
    async def _faults(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if not request.path.startswith("/mock/"):
            await self._not_hung.wait()
            if self._refuses:
                return web.Response(status=503, text="refused")
        return await handler(request)

    async def _stats(self, _request: web.Request) -> web.Response:
        return json_response(self.stats())

    def _reset_connections(self, spare: asyncio.Transport | None) -> None:
        assert self._runner is not None
        assert self._runner.server is not None
        for connection in self._runner.server.connections:
            transport = connection.transport
            if transport is not None and transport is not spare:
                transport.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE
                )
                transport.abort()
