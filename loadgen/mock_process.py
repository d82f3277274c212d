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
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import zmq
from aiohttp import web

from indexer.events import KvEvent
from loadgen.engine import EngineModel, EngineSettings
from loadgen.held_ports import HeldPorts
from loadgen.mock_api import ApiError
from loadgen.mock_driver import RealTimeDriver
from loadgen.mock_events import EventPublisher
from loadgen.mock_http import BODY_BYTES_MAX, Identity, VllmApi, answer_errors, json_response
from loadgen.wire import Layout, encode_batch
from router.tasks import start_task

VERSIONS = {Layout.MAPS: "0.32.0", Layout.ARRAYS: "0.23.0"}
"""The engine version that a layout stands for."""
REPLAY_PORT_OFFSET = 1000
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER with no time to linger: closing sends RST, as a killed process with unread data does."""
LISTEN_BACKLOG = 4096
"""Bursts of connections are the load client's business, not a fault of the mock."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FleetConfig:
    """Worker i listens on `port + i`, publishes on `events_port + i` and replays on `events_port + 1000 + i`;
    0 lets the system choose each port."""

    engine: EngineSettings
    model: str
    adapters: tuple[str, ...]
    layout: Layout
    topic: str
    host: str
    port: int
    events_port: int

    def endpoints(self, index: int) -> tuple[str, str]:
        """ZMQ endpoints of worker `index` to bind: events, replay."""
        if not self.events_port:
            return f"tcp://{self.host}:*", f"tcp://{self.host}:*"
        port = self.events_port + index
        return f"tcp://{self.host}:{port}", f"tcp://{self.host}:{port + REPLAY_PORT_OFFSET}"


class FaultBody(msgspec.Struct, forbid_unknown_fields=True):
    """What is posted to `/mock/fault`."""

    fault: str
    worker: int | None = None
    count: int | None = None
    after_tokens: int = 1
    factor: float = 10.0


class MockWorker:
    """One worker. Its ports are chosen at the first start and kept over restarts."""

    driver: RealTimeDriver
    identity: Identity

    def __init__(self, config: FleetConfig, index: int, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.index = index
        self.events_endpoint, self.replay_endpoint = config.endpoints(index)
        self.cut_after_tokens: int | None = None
        self.reports_miss = config.layout is Layout.MAPS
        self.num_incarnations = 0
        self._config = config
        self._context = context
        self._port = config.port and config.port + index
        self._held_ports = HeldPorts(config.host)
        self._refuses = False
        self._not_hung = asyncio.Event()
        self._not_hung.set()
        self._request_numbers = itertools.count()
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None
        self._publisher: EventPublisher | None = None
        self._driving: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"http://{self._config.host}:{self._port}"

    @property
    def is_alive(self) -> bool:
        return self._site is not None

    @property
    def num_event_messages(self) -> int:
        """Messages that this incarnation has published, 0 when it is dead; the next one has this number."""
        return self._publisher.next_sequence if self._publisher else 0

    def next_request_id(self) -> str:
        return f"{self.index:02x}{next(self._request_numbers):014x}"

    def wall_seconds(self) -> float:
        return time.time()  # noqa: TID251 -- the mock is a shell: its events and answers carry wall time

    async def open(self, fault_handler: Handler) -> None:
        """Builds the HTTP application and starts the first incarnation."""
        app = web.Application(middlewares=[self._faults, answer_errors], client_max_size=BODY_BYTES_MAX)
        VllmApi(self).add_routes(app)
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
        """A new incarnation: empty cache, event numbers from 0, a new start time."""
        assert self._runner is not None
        config = self._config
        self._held_ports.release()
        self.num_incarnations += 1
        self.identity = Identity(
            model=config.model,
            adapters=config.adapters,
            version=VERSIONS[config.layout],
            start_time=self.wall_seconds(),
        )
        self._publisher = EventPublisher(self._context, layout=config.layout, topic=config.topic.encode())
        endpoints = await self._publisher.bind(self.events_endpoint, self.replay_endpoint)
        self.events_endpoint, self.replay_endpoint = endpoints
        self.driver = RealTimeDriver(EngineModel(config.engine), self.publish)
        self._driving = start_task(self.driver.run(), f"mock-worker-{self.index}")
        self._site = web.TCPSite(self._runner, config.host, self._port, backlog=LISTEN_BACKLOG)
        await self._site.start()
        self._port = self._runner.addresses[-1][1]

    async def stop(self, *, spare: asyncio.Transport | None = None) -> None:
        """As if the process were killed, however far its start had come. `spare` is the one connection that
        may still be answered."""
        if self._site is not None:
            await self._site.stop()
            self._site = None
            self._reset_connections(spare)
        if self._driving is not None:
            self._driving.cancel()
            await asyncio.wait([self._driving])
            self._driving = None
        if self._publisher is not None:
            await self._publisher.close()
            self._publisher = None
            endpoints = (self.events_endpoint, self.replay_endpoint)
            self._held_ports.hold([self._port, *(int(e.rpartition(":")[2]) for e in endpoints)])

    def publish(self, events: Sequence[KvEvent]) -> None:
        """Sends the next event message; the driver does it after each step that has events."""
        assert self._publisher is not None
        payload = encode_batch(events, timestamp=self.wall_seconds(), dp_rank=0, layout=self._config.layout)
        self._publisher.publish(payload)

    async def fault(
        self, name: str, *, count: int | None = None, after_tokens: int = 1, factor: float = 10.0
    ) -> None:
        """Sets a fault from the same process: `await worker.fault("drop_events", count=3)`."""
        await self.apply_fault(FaultBody(name, count=count, after_tokens=after_tokens, factor=factor))

    async def apply_fault(self, body: FaultBody, spare: asyncio.Transport | None = None) -> None:
        """Raises ApiError 400 for an unknown name."""
        apply = self._fault_table().get(body.fault)
        if apply is None:
            known = ", ".join(self._fault_table())
            raise ApiError(400, f"unknown fault {body.fault!r}; known: {known}", param="fault")
        await apply(body, spare)

    def stats(self) -> dict[str, Any]:
        """What `GET /mock/stats` answers."""
        model, counters = self.driver.model, self.driver.model.counters
        return {
            "worker": self.index,
            "incarnation": self.num_incarnations,
            "active_requests": model.num_running + model.num_waiting,
            "event_messages": self.num_event_messages,
            "dropped_event_messages": self._publisher.num_dropped if self._publisher else 0,
            "cached_blocks": model.pool.num_cached,
            "lag_seconds_mean": self.driver.lag_seconds_mean,
            "lag_seconds_max": self.driver.lag_seconds_max,
            **dataclasses.asdict(counters),
        }

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
            "clear": self._clear,
        }

    async def _die(self, _body: FaultBody, spare: asyncio.Transport | None) -> None:
        await self.stop(spare=spare)

    async def _restart(self, _body: FaultBody, spare: asyncio.Transport | None) -> None:
        await self.stop(spare=spare)
        await self.start()

    async def _hang(self, _body: FaultBody, _spare: asyncio.Transport | None) -> None:
        self._not_hung.clear()
        self.driver.pause()

    async def _refuse(self, _body: FaultBody, _spare: asyncio.Transport | None) -> None:
        self._refuses = True

    async def _drop_events(self, body: FaultBody, _spare: asyncio.Transport | None) -> None:
        assert self._publisher is not None
        self._publisher.drops_left = body.count

    async def _error_mid_stream(self, body: FaultBody, _spare: asyncio.Transport | None) -> None:
        self.cut_after_tokens = body.after_tokens

    async def _slow(self, body: FaultBody, _spare: asyncio.Transport | None) -> None:
        self.driver.model.slowdown = body.factor

    async def _clear(self, _body: FaultBody, _spare: asyncio.Transport | None) -> None:
        self._refuses = False
        self.cut_after_tokens = None
        self._not_hung.set()
        if not self.is_alive:
            await self.start()
        assert self._publisher is not None
        self._publisher.drops_left = 0
        self.driver.model.slowdown = 1.0
        self.driver.resume()

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
