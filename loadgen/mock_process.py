"""One mock worker with a process's life: incarnations, ports that stay, connections that can be reset,
faults.

The table of faults is in `mock_faults`; what the worker answers is in `mock_http`.
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
from loadgen.mock_connectors import connector_of
from loadgen.mock_faults import FaultBody, apply_fault
from loadgen.mock_hand_over import Connector, Fabric, HandOverConfig, HandOverCounters, HandOverFaults
from loadgen.mock_http import BODY_BYTES_MAX, EngineApi, Host, Identity, json_response
from loadgen.mock_ranks import MockRank, find_free_ports
from loadgen.mock_sglang import SglangApi
from loadgen.mock_vllm import VllmApi
from loadgen.wire import RELEASES, Layout
from policies.types import Role
from router.tasks import start_task

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
    hand_over: HandOverConfig = dataclasses.field(default_factory=HandOverConfig)
    records_requests: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Received:
    """A request for text, as it came."""

    path: str
    headers: Mapping[str, str]
    body: bytes


class MockWorker:
    """One worker. Its ports are chosen at the first start and kept over restarts."""

    identity: Identity

    def __init__(
        self,
        config: FleetConfig,
        index: int,
        context: zmq.Context[zmq.Socket[bytes]],
        *,
        role: Role = Role.BOTH,
        fabric: Fabric | None = None,
    ) -> None:
        """`fabric`: the network to the engines that it hands over to."""
        self.index = index
        self.role = role
        self.fabric = fabric or Fabric()
        self.hand_over = config.hand_over
        self.hand_over_counters = HandOverCounters()
        self.hand_over_faults = HandOverFaults()
        self.connector = Connector(self)
        self.received: list[Received] = []
        """Requests for text, where the fleet records them."""
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
        self._bootstrap_port = config.hand_over.bootstrap_port and config.hand_over.bootstrap_port + index
        self._crashing: asyncio.Task[None] | None = None
        self.refuses = False
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
    def address(self) -> str:
        return self._config.host

    @property
    def bootstrap_port(self) -> int | None:
        return self._bootstrap_port if self.role is Role.PREFILL else None

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

    def record(self, request: web.Request, body: bytes) -> None:
        if self._config.records_requests:
            headers = {name.lower(): value for name, value in request.headers.items()}
            self.received.append(Received(request.path, headers, body))

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
        await self._start_connector()
        self._site = web.TCPSite(self._runner, config.host, self._port, backlog=LISTEN_BACKLOG)
        await self._site.start()
        self._port = self._runner.addresses[-1][1]

    async def _start_connector(self) -> None:
        if self.role is Role.PREFILL and not self._bootstrap_port:
            self._bootstrap_port = find_free_ports(self._config.host, 1)
        self.connector = connector_of(self, self.release.engine)
        await self.connector.start()

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
        await self.connector.stop()
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
        """Raises ApiError 400 that names what is wrong."""
        await apply_fault(self, body, spare)

    def stats(self) -> dict[str, Any]:
        """What `GET /mock/stats` answers."""
        ranks = [rank.stats() for rank in self.ranks]
        totals = {name: sum(each[name] for each in ranks) for name in ranks[0]}
        lags = {name: max(each[name] for each in ranks) for name in ("lag_seconds_mean", "lag_seconds_max")}
        return {
            "worker": self.index,
            "role": self.role,
            "incarnation": self.num_incarnations,
            **totals,
            **lags,
            **dataclasses.asdict(self.hand_over_counters),
            "ranks": ranks,
        }

    # Faults

    async def die(self, spare: asyncio.Transport | None) -> None:
        await self.stop(spare=spare)

    async def restart(self, spare: asyncio.Transport | None, num_ranks: int | None) -> None:
        await self.stop(spare=spare)
        self._num_ranks = num_ranks or self._num_ranks
        await self.start()

    def hang(self) -> None:
        self._not_hung.clear()
        for rank in self.ranks:
            rank.driver.pause()

    def drop_events(self, count: int | None) -> None:
        for rank in self.ranks:
            rank.publisher.drops_left = count

    def slow_down(self, factor: float) -> None:
        for rank in self.ranks:
            rank.model.slowdown = factor

    async def clear(self) -> None:
        self.refuses = False
        self.cut_after_tokens = None
        self.told_block_tokens = self._config.engine.block_tokens
        self.hand_over_faults = HandOverFaults()
        self._not_hung.set()
        if not self.is_alive:
            await self.start()
        for rank in self.ranks:
            rank.publisher.drops_left = 0
            rank.model.slowdown = 1.0
            rank.driver.resume()

    def crash(self, spare: asyncio.Transport | None) -> None:
        """A request has killed the engine, and its server ends."""
        if self.is_alive and self._crashing is None:
            self.hand_over_counters.died += 1
            self._crashing = start_task(self._crash(spare), f"mock-crash-{self.index}")

    async def _crash(self, spare: asyncio.Transport | None) -> None:
        try:
            await self.stop(spare=spare)
        finally:
            self._crashing = None

    # HTTP and events

    @web.middleware
    async def _faults(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if not request.path.startswith("/mock/"):
            await self._not_hung.wait()
            if self.refuses:
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
