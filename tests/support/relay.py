"""A gateway in this process between raw clients and raw workers: the real server, proxy, core and metrics."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from policies import make_policy
from policies.types import ServedModel, Worker
from router.config import Settings
from router.core.disagg import DisaggRules
from router.core.prompt import Prompt
from router.core.routing import RoutingCore
from router.dialing import Dialer
from router.host_names import HostNames
from router.limits import RelayLimits
from router.metrics import Metrics
from router.proxy import Proxy
from router.server import Server
from router.tls import ReloadedContext
from router.worker_address import WorkerAddress
from tests.support.certificates import client_context, system_trust
from tests.support.raw_worker import RawWorker
from tests.support.waiting import eventually

CLOCK = time.monotonic  # noqa: TID251 - a shell, as the gateway's own


class NoTokens:
    """A token source for policies that read no prompt."""

    async def prompt(self, *_: object) -> Prompt | None:
        return None


@dataclass
class StillFleet:
    """FleetHooks of a fleet in which nothing changes."""

    reprobed: list[str] = field(default_factory=list)
    suspected: list[str] = field(default_factory=list)
    pending: bool = False
    entries: list[dict[str, object]] = field(default_factory=list)
    key: str | None = None

    def key_of(self, worker: Worker) -> str | None:
        return self.key

    def model_entries(self) -> list[dict[str, object]]:
        return self.entries

    async def reprobe(self, model: str) -> None:
        self.reprobed.append(model)

    def has_pending(self) -> bool:
        return self.pending

    def suspect(self, worker_id: str) -> None:
        self.suspected.append(worker_id)

    def is_ready(self) -> bool:
        return True


@dataclass
class Gateway:
    """What a test holds of the gateway."""

    core: RoutingCore
    proxy: Proxy
    server: Server
    fleet: StillFleet
    metrics: Metrics
    port: int
    tls: bool = False

    async def at_rest(self) -> None:
        """Wait until nothing is booked, held or connected but idle worker connections."""
        await eventually(
            lambda: self.num_booked == self.server.num_connections == len(self.proxy.legs._draining) == 0,
            what="bookings, connections, prefill legs at 0",
        )
        assert self.server.collected_bytes == 0
        self.core.check()

    @property
    def num_booked(self) -> int:
        return sum(view.num_active_requests for view in self.core.workers())

    def counted(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        return sum(
            sample.value
            for family in self.metrics.registry.collect()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    @contextlib.asynccontextmanager
    async def client(
        self, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
    ) -> AsyncIterator[RawClient]:
        """A connection to the gateway; over TLS when it serves that, or with the client's own `tls`."""
        tls = tls or (client_context() if self.tls else None)
        reader, writer = await asyncio.open_connection(host, self.port, limit=1 << 27, ssl=tls)
        client = RawClient(reader, writer)
        try:
            yield client
        finally:
            writer.transport.abort()

    async def ask(self, data: bytes) -> Answer:
        """One request over a connection of its own."""
        async with self.client() as client:
            await client.send(data)
            return await client.answer(without_body=data.startswith(b"HEAD "))


class NoEngineIds:
    """Of fleets whose protocol asks for none."""

    async def engine_id(self, worker: Worker) -> str:
        raise AssertionError("no bootstrap server is asked here")

    def forget(self, worker: Worker) -> None:
        pass


@contextlib.asynccontextmanager
async def gateway(
    *workers: RawWorker | str | Worker,
    models: Sequence[Sequence[str]] = (),
    settings: Settings | None = None,
    max_connections: int = 1000,
    tokens: object | None = None,
    policy: str = "round_robin",
    disagg: DisaggRules = DisaggRules(),  # noqa: B008 - immutable
    host: str = "127.0.0.1",
    tls: ssl.SSLContext | None = None,
    worker_tls: ReloadedContext | None = None,
    **limits: float,
) -> AsyncIterator[Gateway]:
    """Before these workers (or URLs). `models`: names by worker, else all serve `m`. Afterwards everything is
    at rest, or the test fails."""
    settings = settings or Settings(policy=policy)
    core = RoutingCore(policy=make_policy(settings.policy), disagg=disagg)
    core.reconcile([_worker(w, models[i] if models else ("m",)) for i, w in enumerate(workers)], now=CLOCK())
    fleet, metrics = StillFleet(key=settings.worker_api_key), Metrics()
    relay_limits = RelayLimits(**{"body_bytes": settings.max_body, **limits})
    proxy = Proxy(
        core=core,
        settings=settings,
        tokens=tokens or NoTokens(),
        metrics=metrics,
        clock=CLOCK,
        fleet=fleet,
        dialer=Dialer(worker_tls or system_trust(), HostNames(CLOCK)),
        engine_ids=NoEngineIds(),
        limits=relay_limits,
    )
    server = Server(
        proxy,
        limits=relay_limits,
        clock=CLOCK,
        max_connections=max_connections,
        check=proxy.upstream.check,
    )
    await server.start(host, 0, tls)
    running = Gateway(core, proxy, server, fleet, metrics, server.port, tls is not None)
    try:
        yield running
        await running.at_rest()
    finally:
        await server.drain(0)
        proxy.legs.close()
        proxy.upstream.close()


def _worker(worker: RawWorker | str | Worker, models: Sequence[str]) -> Worker:
    if isinstance(worker, Worker):
        return worker
    url = worker if isinstance(worker, str) else worker.url
    return Worker(id=WorkerAddress.parse(url).id, url=url, models=tuple(ServedModel(name) for name in models))


@dataclass
class Answer:
    """An answer as it stood on the wire, and what it means."""

    head: bytes
    body: bytes
    raw_body: bytes

    @property
    def status(self) -> int:
        return int(self.head.split(b" ", 2)[1])

    def values(self, name: str) -> list[str]:
        """All values of a header."""
        wanted = name.lower() + ":"
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        return [line.partition(":")[2].strip() for line in lines if line.lower().startswith(wanted)]

    def value(self, name: str) -> str | None:
        return next(iter(self.values(name)), None)


@dataclass
class RawClient:
    """A client that writes bytes and reads answers."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def leave(self) -> None:
        self.writer.close()

    async def answer(self, *, without_body: bool = False) -> Answer:
        """The next answer, 1xx included. Raises IncompleteReadError when it is cut."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        answer = Answer(head, b"", b"")
        if without_body or answer.status < 200 or answer.status in (204, 304):
            return answer
        if answer.value("transfer-encoding") == "chunked":
            return await self._chunked(answer)
        length = answer.value("content-length")
        answer.body = answer.raw_body = (
            await self.reader.readexactly(int(length)) if length is not None else await self.reader.read()
        )
        return answer

    async def _chunked(self, answer: Answer) -> Answer:
        raw, body = bytearray(), bytearray()
        while True:
            size = await self.reader.readuntil(b"\r\n")
            data = await self.reader.readexactly(int(size.split(b";")[0], 16) + 2)
            raw += size + data
            if len(data) == 2:
                answer.body, answer.raw_body = bytes(body), bytes(raw)
                return answer
            body += data[:-2]

    async def closed(self) -> bytes:
        """What comes until the gateway closes."""
        return await self.reader.read()


def post(
    body: bytes = b'{"model":"m","prompt":"p"}', path: str = "/v1/completions", *, extra: str = ""
) -> bytes:
    """A request with a length."""
    head = f"POST {path} HTTP/1.1\r\nHost: gateway\r\n{extra}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def get(path: str, *, method: str = "GET", extra: str = "") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: gateway\r\n{extra}\r\n".encode()
