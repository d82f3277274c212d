"""Mock workers: TokenEngines behind HTTP and ZMQ, with fault switches.

`MockFleet` is several workers in one process; `main` is `kvgate mock`.
Faults (`mock_faults`) are set with `POST /mock/fault {"fault": NAME, ...}` on any living worker of the fleet;
`"worker": i` names another one than the one that was asked.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import signal
import sys
from collections.abc import Sequence
from typing import Self

import uvloop
import zmq
from aiohttp import web

from loadgen.arguments import above_zero, command_line, whole_number
from loadgen.console import Console
from loadgen.engine import EngineSettings
from loadgen.mock_api import ApiError, decode
from loadgen.mock_connectors import CONNECTORS
from loadgen.mock_faults import FaultBody
from loadgen.mock_hand_over import Fabric, HandOverConfig
from loadgen.mock_http import json_response
from loadgen.mock_process import REPLAY_PORT_OFFSET, FleetConfig, MockWorker
from loadgen.transfer import TransferModel
from loadgen.wire import NEWEST, RELEASES, Layout
from policies.types import Role

PORT_MAX = 65535


class MockFleet:
    """`async with MockFleet(num_workers=2) as fleet`: all workers answer when the block begins."""

    def __init__(
        self,
        num_workers: int = 1,
        *,
        engine: EngineSettings | None = None,
        model: str = "mock",
        adapters: Sequence[str] = (),
        layout: Layout = Layout.MAPS,
        topic: str = "",
        host: str = "127.0.0.1",
        port: int = 0,
        events_port: int = 0,
        data_parallel_size: int = 1,
        num_prefill: int = 0,
        num_decode: int = 0,
        hand_over: HandOverConfig | None = None,
        records_requests: bool = False,
    ) -> None:
        """Prefill workers come first, then decode workers, then `num_workers` that do everything. With port 0
        the system chooses; see FleetConfig."""
        config = FleetConfig(
            engine=engine or EngineSettings(),
            model=model,
            adapters=tuple(adapters),
            layout=layout,
            topic=topic,
            host=host,
            port=port,
            events_port=events_port,
            num_ranks=data_parallel_size,
            hand_over=hand_over or HandOverConfig(bootstrap_port=0),
            records_requests=records_requests,
        )
        roles = [Role.PREFILL] * num_prefill + [Role.DECODE] * num_decode + [Role.BOTH] * num_workers
        fabric = Fabric()
        self._context = zmq.Context[zmq.Socket[bytes]].instance()
        self.workers = [
            MockWorker(config, i, self._context, role=role, fabric=fabric) for i, role in enumerate(roles)
        ]
        self.prefill = self.workers[:num_prefill]
        self.decode = self.workers[num_prefill : num_prefill + num_decode]
        self.whole = self.workers[num_prefill + num_decode :]

    async def __aenter__(self) -> Self:
        try:
            for worker in self.workers:
                await worker.open(functools.partial(self._handle_fault, worker))
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        for worker in self.workers:
            await worker.close()

    async def _handle_fault(self, asked: MockWorker, request: web.Request) -> web.Response:
        body = decode(await request.read(), FaultBody)
        if body.worker is not None and not 0 <= body.worker < len(self.workers):
            raise ApiError(400, f"worker must be below {len(self.workers)}", param="worker")
        target = asked if body.worker is None else self.workers[body.worker]
        await target.apply_fault(body, request.transport)
        response = json_response({"fault": body.fault, "worker": target.index})
        response.force_close()  # the one connection that a dying worker spared
        return response


def main(argv: Sequence[str]) -> int:
    """`kvgate mock`: prints one line when all workers answer; ends on SIGTERM or SIGINT with 0, with 1 when a
    port can't be had."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    _check_ports(parser, arguments)
    fleet = MockFleet(
        _num_whole(arguments),
        num_prefill=arguments.prefill,
        num_decode=arguments.decode,
        hand_over=HandOverConfig(
            connector=arguments.connector,
            transfer=TransferModel(
                gbps=arguments.transfer_gbps, bytes_per_token=arguments.kv_bytes_per_token
            ),
            bootstrap_port=arguments.bootstrap_port,
        ),
        engine=EngineSettings(
            block_tokens=arguments.block_size,
            num_blocks=arguments.num_blocks,
            max_model_len=arguments.max_model_len,
            speedup=arguments.speedup,
        ),
        model=arguments.model,
        layout=_layout(parser, arguments),
        data_parallel_size=arguments.data_parallel_size,
        host=arguments.host,
        port=arguments.port,
        events_port=arguments.events_port,
    )
    try:
        uvloop.run(_serve(fleet))
    except (OSError, zmq.ZMQError) as error:
        Console(sys.stderr).line(f"kvgate mock: can't listen: {error}")
        return 1
    return 0


async def _serve(fleet: MockFleet) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stopped.set)
    async with fleet:
        print(_ready_line(fleet), flush=True)  # noqa: T201 -- what whoever started us waits for
        await stopped.wait()


def _ready_line(fleet: MockFleet) -> str:
    first, last = fleet.workers[0], fleet.workers[-1]
    count = len(fleet.workers)
    workers = "1 mock worker" if count == 1 else f"{count} mock workers"
    if fleet.prefill or fleet.decode:
        parts = (f"{len(fleet.prefill)} prefill", f"{len(fleet.decode)} decode", f"{len(fleet.whole)} whole")
        workers += f" ({', '.join(parts)})"
    urls = first.url if count == 1 else f"{first.url} to {last.url}"
    events = first.events_endpoint
    if last.last_events_endpoint != events:
        events += f" to {last.last_events_endpoint}"
    return f"ready: {workers}, {urls}, events {events}"


def _parser() -> argparse.ArgumentParser:
    parser = command_line("mock", "A fleet of mock inference workers with real KV events, in one process.")
    engine = EngineSettings()
    parser.add_argument(
        "--num-workers",
        type=whole_number(0),
        default=argparse.SUPPRESS,
        help="how many workers that do everything (default: 4, with pools 0)",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address of all sockets")
    parser.add_argument(
        "--port", type=whole_number(0, PORT_MAX), default=8100, help="HTTP port of worker 0; worker i: + i"
    )
    parser.add_argument(
        "--events-port",
        type=whole_number(0, PORT_MAX),
        default=5600,
        help="events on this + i, with N ranks on this + i*N + rank, replay + 1000 more; 0: any",
    )
    parser.add_argument(
        "--engine", choices=list(NEWEST), default="vllm", help="whose paths and events to speak"
    )
    parser.add_argument(
        "--events-layout",
        choices=[layout.value for layout in Layout],
        help="of which releases; default: the engine's newest. " + "; ".join(map(_in_words, Layout)),
    )
    parser.add_argument(
        "--data-parallel-size", type=whole_number(1), default=1, help="ranks behind each worker's URL"
    )
    parser.add_argument("--model", default="mock", help="name of the served model")
    parser.add_argument(
        "--block-size", type=whole_number(1), default=engine.block_tokens, help="tokens per KV block"
    )
    parser.add_argument(
        "--num-blocks", type=whole_number(1), default=engine.num_blocks, help="KV blocks per worker"
    )
    parser.add_argument(
        "--max-model-len", type=whole_number(1), default=engine.max_model_len, help="context in tokens"
    )
    parser.add_argument(
        "--speedup", type=above_zero, default=1.0, help="how much faster than the published curves"
    )
    _add_pools(parser)
    return parser


def _add_pools(parser: argparse.ArgumentParser) -> None:
    """Prefill and decode apart."""
    parser.add_argument(
        "--prefill", type=whole_number(0), default=0, help="how many prefill workers; the first"
    )
    parser.add_argument("--decode", type=whole_number(0), default=0, help="how many decode workers; the next")
    transfer = TransferModel()
    parser.add_argument(
        "--connector", choices=list(CONNECTORS), default="nixl", help="how vLLM's pools hand over"
    )
    parser.add_argument(
        "--transfer-gbps", type=above_zero, default=transfer.gbps, help="network of each worker of a pool"
    )
    parser.add_argument(
        "--kv-bytes-per-token",
        type=whole_number(1),
        default=transfer.bytes_per_token,
        help="that travel between pools",
    )
    parser.add_argument(
        "--bootstrap-port",
        type=whole_number(0, PORT_MAX),
        default=HandOverConfig().bootstrap_port,
        help="where SGLang's and Mooncake's prefill workers are met, worker i: + i; 0: any",
    )


def _check_ports(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Every worker needs its own."""
    num_workers = arguments.prefill + arguments.decode + _num_whole(arguments)
    if not num_workers:
        parser.error("--num-workers 0 needs --prefill or --decode: there would be no worker")
    last_replay = arguments.events_port and arguments.events_port + REPLAY_PORT_OFFSET
    num_publishers = num_workers * arguments.data_parallel_size
    ends = (
        arguments.port + num_workers,
        last_replay + num_publishers,
        arguments.bootstrap_port + num_workers,
    )
    if max(ends) - 1 > PORT_MAX:
        parser.error(f"the ports of {num_workers} workers go beyond {PORT_MAX}")


def _num_whole(arguments: argparse.Namespace) -> int:
    """Four where nothing else was asked for."""
    has_pools = arguments.prefill or arguments.decode
    count: int = getattr(arguments, "num_workers", 0 if has_pools else 4)
    return count


def _layout(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> Layout:
    """What was asked for, if the engine ever spoke it."""
    layout = Layout(arguments.events_layout or NEWEST[arguments.engine])
    if RELEASES[layout].engine != arguments.engine:
        own = ", ".join(each.value for each in Layout if RELEASES[each].engine == arguments.engine)
        parser.error(f"--events-layout {layout.value} is not of {arguments.engine}, which spoke {own}")
    return layout


def _in_words(layout: Layout) -> str:
    release = RELEASES[layout]
    return f"{layout.value}: as {release.engine} {release.version}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
