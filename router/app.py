"""The gateway as a process: builds the objects, wires them, starts and stops them in order. Nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence

import uvloop
import zmq
from aiohttp import web

from indexer.http_listener import Site
from indexer.warm_start import SnapshotFile, WarmStart
from policies import make_policy, parse_policy
from policies.base import Policy
from router.admin import build_admin_app
from router.cli import USAGE_ERROR
from router.config import Settings, in_brackets, load_or_exit
from router.core.routing import RoutingCore
from router.dialing import Dialer
from router.discovery import StaticSource, WorkerSpec, expand_workers
from router.engines import WorkerSessions
from router.engines.bootstrap import BootstrapServers
from router.fleet import Fleet, FleetTokenHost
from router.host_names import HostNames
from router.limits import RelayLimits
from router.logs import set_up_logging
from router.metrics import Metrics
from router.preview import Previewer
from router.proxy import Proxy
from router.server import Server, raise_descriptor_limit
from router.tls import ReloadedContext, ServerContext, worker_context
from router.tokenizer_files import NoTokenizer
from router.tokens import SOURCES as TOKEN_SOURCES
from router.tokens import LocalModels, TokenSource

_logger = logging.getLogger("kvgate")

TICK_SECONDS = 0.05
"""How often the core does what is due (prefill releases, predictions, sweeping). Its deadlines are soft, and
one look costs a few microseconds."""

YOUNG_OBJECTS = 10_000
"""So many more objects than before set a collection off; one takes 0.5 ms at the most. With CPython's 700 a
20th of a request's time went there."""


class Gateway:
    """Everything that serves, in one object. `start` and `stop` once each."""

    def __init__(self, settings: Settings, *, limits: RelayLimits | None = None) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.core = RoutingCore(
            policy=make_policy(settings.policy, settings.parameters_for(settings.policy)),
            prefill_policy=_pool_policy(settings.prefill_policy),
            decode_policy=_pool_policy(settings.decode_policy),
            disagg=settings.disagg_rules,
            predicted_ttl=settings.predicted_ttl,
            bridge_ttl=settings.bridge_ttl,
            index_bytes=settings.index_max_bytes,
            seed=settings.seed,
            hashing=settings.block_hash,
        )
        self._limits = limits or RelayLimits.from_settings(settings)
        self._resources = contextlib.AsyncExitStack()
        self._ticker: asyncio.TimerHandle | None = None
        self._certificate: ServerContext | None
        self._worker_tls: ReloadedContext
        self._clock: Callable[[], float]
        self._tokens: TokenSource
        self.fleet: Fleet
        self.proxy: Proxy
        self.server: Server
        self.admin_port = 0

    @property
    def port(self) -> int:
        return self.server.port

    async def start(self) -> None:
        """Serves when this returns; workers join as they answer. Raises OSError for an address that can't be
        had or a certificate that can't be read and NoTokenizer for a tokenizer that can't be, after giving
        back whatever it had taken."""
        try:
            await self._start()
        except BaseException:
            await self._resources.aclose()
            raise

    async def _start(self) -> None:
        settings = self.settings
        self._clock = time.monotonic  # noqa: TID251 - the one clock; the loop's own counts whole milliseconds
        self._certificate = _certificate(settings)
        self._worker_tls = _worker_tls(settings)
        sessions = await self._resources.enter_async_context(WorkerSessions(self._worker_tls))
        # The process's one: subscriptions close their sockets, and nobody waits for ZMQ's threads to agree.
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        warm_start = WarmStart()
        self.fleet = Fleet(
            core=self.core,
            settings=settings,
            sessions=sessions,
            context=context,
            clock=self._clock,
            warm_start=warm_start,
        )
        self._resources.push_async_callback(self.fleet.stop)
        self.metrics.watch(self.core, self.fleet.worker_ids)
        token_host = FleetTokenHost(self.core, self.fleet, self.metrics)
        models = LocalModels(settings.tokenizer, settings.chat_template)
        self._resources.callback(models.close)
        models.load_named()
        self._tokens = TOKEN_SOURCES[settings.tokens](token_host, sessions, models)
        if settings.tokens != "bytes":
            self.fleet.compare_tokens_with(self._tokens)
        self.proxy = Proxy(
            core=self.core,
            settings=settings,
            tokens=self._tokens,
            metrics=self.metrics,
            clock=self._clock,
            fleet=self.fleet,
            dialer=Dialer(self._worker_tls, HostNames(self._clock)),
            engine_ids=BootstrapServers(sessions),
            limits=self._limits,
        )
        self._resources.callback(self.proxy.upstream.close)
        self._resources.callback(self.proxy.legs.close)
        await self._start_server()
        await self._start_admin()
        self._tick()
        await self._warm_up(warm_start)
        self.fleet.start(StaticSource(_specs_of(settings)))

    async def _warm_up(self, warm_start: WarmStart) -> None:
        """What a file or a peer knows of the workers, before the first of them is asked."""
        settings = self.settings
        if settings.snapshot is not None:
            warm_start.read_file(settings.snapshot)
            file = SnapshotFile(settings.snapshot, self.fleet.snapshot, settings.snapshot_interval)
            file.start()
            self._resources.callback(file.stop)
        if settings.warm_from is not None:
            await warm_start.fetch(settings.warm_from, settings.admin_api_key)

    async def _start_server(self) -> None:
        self.server = Server(
            self.proxy,
            limits=self._limits,
            clock=self._clock,
            max_connections=self.settings.max_connections,
            check=self._check,
        )
        tls = self._certificate.listening if self._certificate is not None else None
        await self.server.start(self.settings.host, self.settings.port, tls)
        self._resources.callback(self.server.stop)

    async def _start_admin(self) -> None:
        app = build_admin_app(
            core=self.core,
            fleet=self.fleet,
            metrics=self.metrics,
            settings=self.settings,
            explain_body=Previewer(self.core, self._tokens, self._clock),
            clock=self._clock,
        )
        runner = web.AppRunner(app, handle_signals=False)
        await runner.setup()
        self._resources.push_async_callback(runner.cleanup)
        await Site(runner, self.settings.admin_host, self.settings.admin_port).start()
        self.admin_port = runner.addresses[0][1]

    def _check(self, now: float) -> None:
        self.proxy.upstream.check(now)
        self._worker_tls.check()
        if self._certificate is not None:
            self._certificate.check()

    def _tick(self) -> None:
        self.core.expire(now=self._clock())
        self._ticker = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)

    async def stop(self, drain_seconds: float) -> bool:
        """Accepts no more, lets streams end within `drain_seconds`, then cuts; True when none was cut."""
        self.fleet.is_closing = True
        in_time = await self.server.drain(drain_seconds)
        if self._ticker is not None:
            self._ticker.cancel()
        await self._resources.aclose()
        return in_time

    def hurry(self) -> bool:
        """Ends what `stop` still waits for; whether there was anything to cut."""
        has_streams = self.server.num_connections > 0
        self.server.stop()
        return has_streams


def _certificate(settings: Settings) -> ServerContext | None:
    """What is shown to clients; None serves plain HTTP."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    return ServerContext(settings.tls_cert, settings.tls_key)


def _worker_tls(settings: Settings) -> ReloadedContext:
    ca, cert, key = settings.worker_ca, settings.worker_cert, settings.worker_key

    def make() -> ssl.SSLContext:
        return worker_context(ca=ca, cert=cert, key=key, insecure=settings.worker_insecure)

    return ReloadedContext("TLS to workers", make, (ca, cert, key))


def _pool_policy(text: str | None) -> Policy | None:
    return None if text is None else parse_policy(text)


def _specs_of(settings: Settings) -> Sequence[WorkerSpec]:
    specs, mistakes = expand_workers(settings.worker_urls, settings.entries, settings.fleet_defaults)
    assert not mistakes, "the configuration was checked"
    return specs


def main(argv: Sequence[str]) -> int:
    """`kvgate serve`; returns the exit code."""
    settings = load_or_exit(argv)
    set_up_logging(settings.log_level, settings.access_log)
    raise_descriptor_limit()
    return uvloop.run(_serve(settings))


async def _serve(settings: Settings) -> int:
    gateway = Gateway(settings)
    signals = Signals()
    try:
        await gateway.start()
    except NoTokenizer as error:
        _logger.error("can't start: %s", error)
        return USAGE_ERROR
    except OSError as error:
        _logger.error("can't start: %s", error.strerror or error)
        return 1
    _logger.info(
        "serving on %s://%s:%d with policy %s; admin on http://%s:%d",
        "https" if settings.tls_cert else "http", in_brackets(settings.host), gateway.port,
        settings.policy, in_brackets(settings.admin_host), gateway.admin_port,
    )  # fmt: skip
    if settings.worker_insecure:
        _logger.warning("certificates of https workers are not checked (--worker-insecure)")
    if not settings.has_workers:
        _logger.warning("no workers are configured: give --worker-urls, or add them on the admin port")
    gc.collect()
    gc.set_threshold(YOUNG_OBJECTS, 10, 10)
    gc.freeze()  # what lives until the end need not be looked at by every collection
    await signals.first.wait()
    _logger.info("stopping: streams may end within %g s; another signal ends at once", settings.drain_timeout)
    in_time = await signals.unless_again(gateway.stop(settings.drain_timeout), hurry=gateway.hurry)
    _logger.info("stopped" if in_time else "stopped; some streams were cut")
    return 0


class Signals:
    """SIGTERM and SIGINT: the first asks for an orderly end, the second for an immediate one."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self._hurry: Callable[[], bool] | None = None
        self._has_cut = False
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._received)

    def _received(self) -> None:
        if self.first.is_set() and self._hurry is not None:
            self._has_cut |= self._hurry()
        self.first.set()

    async def unless_again(self, ending: Awaitable[bool], *, hurry: Callable[[], bool]) -> bool:
        """Awaits `ending`, which says whether all ended in order; another signal meanwhile calls `hurry`, and
        that says whether it cut anything."""
        self._hurry = hurry
        return await ending and not self._has_cut
