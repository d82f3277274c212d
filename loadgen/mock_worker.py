"""Mock workers: TokenEngines behind HTTP and ZMQ, with fault switches.

`MockFleet` is several workers in one process; `main` is `kvgate mock`.
A fault is set with `POST /mock/fault {"fault": NAME, ...}` on any living worker of the fleet; `"worker": i`
names another one than the one that was asked.

| fault            | what happens, until `clear`                                                            |
| ---------------- | -------------------------------------------------------------------------------------- |
| die              | every connection is reset, all ports are closed; `clear` starts a new incarnation      |
| restart          | die and come back at once: empty cache, event numbers from 0, new start time; with      |
|                  | `ranks` as many data-parallel ranks                                                    |
| hang             | connections are accepted, nothing is answered, the engine stands still                 |
| refuse           | 503 for everything                                                                     |
| drop_events      | the next `count` event messages are lost (all, without `count`); replay still has them |
| error_mid_stream | a stream is cut after `after_tokens` tokens (default 1)                                |
| slow             | steps take `factor` times as long (default 10)                                         |
| misreport        | it says that its blocks have `block_size` tokens; nothing of it without `block_size`   |
| clear            | back to normal                                                                         |
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
from loadgen.mock_http import json_response
from loadgen.mock_process import REPLAY_PORT_OFFSET, FaultBody, FleetConfig, MockWorker
from loadgen.wire import NEWEST, RELEASES, Layout

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
    ) -> None:
        """With port 0 the system chooses; see FleetConfig."""
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
        )
        self._context = zmq.Context[zmq.Socket[bytes]].instance()
        self.workers = [MockWorker(config, i, self._context) for i in range(num_workers)]

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
        arguments.num_workers,
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
        first, last = fleet.workers[0], fleet.workers[-1]
        print(  # noqa: T201 -- the ready line is what whoever started us waits for
            f"ready: {len(fleet.workers)} mock workers, {first.url} to {last.url}, "
            f"events {first.events_endpoint} to {last.last_events_endpoint}",
            flush=True,
        )
        await stopped.wait()


def _parser() -> argparse.ArgumentParser:
    parser = command_line("mock", "A fleet of mock inference workers with real KV events, in one process.")
    engine = EngineSettings()
    parser.add_argument("--num-workers", type=whole_number(1), default=4, help="how many workers")
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
    return parser


def _check_ports(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Every worker needs its own."""
    last_replay = arguments.events_port and arguments.events_port + REPLAY_PORT_OFFSET
    num_publishers = arguments.num_workers * arguments.data_parallel_size
    if max(arguments.port + arguments.num_workers, last_replay + num_publishers) - 1 > PORT_MAX:
        parser.error(f"the ports of {arguments.num_workers} workers go beyond {PORT_MAX}")


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
