"""`kvgate demo`: policies compared on mock workers, through a real gateway, over real sockets.

One process holds the mock fleet, one each run's gateway; this one sends the load. Every policy gets a gateway
of its own, workers with empty caches and the same arrivals. Prompts are chat messages, so the gateway
tokenises them through the workers' `/tokenize` as it would in front of real engines.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import uvloop

from loadgen.arguments import INTERRUPTED, command_line, whole_number, workload
from loadgen.children import Child, ChildError, free_ports
from loadgen.client import chat_requests, run_load
from loadgen.compare import Summary, summarize
from loadgen.console import Console, ProgressBar
from loadgen.explain import explain_line, most_telling
from loadgen.mock_process import REPLAY_PORT_OFFSET
from loadgen.pacing import UTILISATION, Pace, pace_for
from loadgen.report import TABLE_NOTE, render_table
from loadgen.results import RequestResult, some_errors
from loadgen.traces import TraceError, TraceRequest, hit_rate_dealt, statistics_of
from policies import PolicyError, parse_policies, spell_policy

DEFAULT_REQUESTS = 600
DEFAULT_WORKERS = 4
DEFAULT_POLICIES = "random,round_robin,kv"
NUM_BLOCKS = 65_536
"""Per worker: about a million tokens of 16-token blocks, a large accelerator's cache."""
EVENTS_PORT_OFFSET = 200
"""Events of worker i on its HTTP port plus this."""
MODEL = "mock"
SEED = 261
"""Of three hundred tried, one whose 600 requests come near the trace's figures: lengths and hit rates."""
DECISIONS_ASKED = 256


@dataclass(frozen=True, slots=True)
class Fleet:
    """Where the mock workers are."""

    num_workers: int
    port: int

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{self.port + i}" for i in range(self.num_workers)]

    def mock_arguments(self, pace: Pace) -> list[str]:
        return [
            "mock", "--num-workers", str(self.num_workers), "--port", str(self.port),
            "--events-port", str(self.port + EVENTS_PORT_OFFSET), "--model", MODEL,
            "--num-blocks", str(NUM_BLOCKS), "--speedup", f"{pace.speedup:.6f}",
        ]  # fmt: skip

    def gateway_arguments(self, policy: str, port: int) -> list[str]:
        replay = EVENTS_PORT_OFFSET + REPLAY_PORT_OFFSET
        return [
            "serve", "--host", "127.0.0.1", "--port", str(port), "--admin-port", str(port + 1),
            "--policy", policy, "--worker-urls", *self.urls,
            "--kv-events", f"tcp://{{host}}:{{port+{EVENTS_PORT_OFFSET}}}",
            "--kv-replay", f"tcp://{{host}}:{{port+{replay}}}",
        ]  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Exit code 0 when every request of every run was answered, 1 otherwise."""
    arguments = _parser().parse_args(argv)
    console = Console()
    try:
        return uvloop.run(_demo(arguments, console))
    except (TraceError, ChildError, OSError) as error:
        console.line(f"kvgate demo: {error}")
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.line("stopped")
        return INTERRUPTED


async def _demo(arguments: argparse.Namespace, console: Console) -> int:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    requests = workload(arguments.trace, arguments.requests, SEED)
    pace = pace_for(requests, arguments.num_workers)
    _introduce(console, requests, pace, arguments)
    async with AsyncExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvgate-demo-")))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        fleet = Fleet(arguments.num_workers, _free_fleet_port(arguments.num_workers))
        mock = Child("mock fleet", fleet.mock_arguments(pace), logs / "mock.log")
        await stack.enter_async_context(mock)
        await mock.ready(lambda: _all_answer(session, fleet.urls))
        run = _Run(session, fleet, requests, pace, console, logs)
        summaries = [await run.under(policy) for policy in arguments.policies]
    console.line()
    console.line(render_table(summaries))
    console.line(TABLE_NOTE)
    for line in run.explained:
        console.line(line)
    return int(any(summary.num_errors for summary in summaries))


class _Run:
    """The same workload under one policy after the other."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        fleet: Fleet,
        requests: Sequence[TraceRequest],
        pace: Pace,
        console: Console,
        logs: Path,
    ) -> None:
        self.explained: list[str] = []
        """A decision in words for each policy that has costs."""
        self._session = session
        self._fleet = fleet
        self._requests = requests
        self._pace = pace
        self._console = console
        self._logs = logs

    async def under(self, policy: str) -> Summary:
        """Empty caches, a fresh gateway, the whole load."""
        for url in self._fleet.urls:
            await _post(self._session, f"{url}/mock/fault", {"fault": "restart"})
        port = free_ports((0, 1))
        arguments = self._fleet.gateway_arguments(policy, port)
        admin = f"http://127.0.0.1:{port + 1}"
        async with Child(f"gateway ({policy})", arguments, self._logs / f"{policy}.log") as gateway:
            await gateway.ready(lambda: _fleet_is_exact(self._session, admin, len(self._fleet.urls)))
            results = await self._load(policy, f"http://127.0.0.1:{port}")
            gateway.check()
            await self._explain(policy, admin)
        await self._tell(policy, results)
        return summarize(policy, results, len(self._fleet.urls), random.Random(SEED))

    async def _load(self, policy: str, url: str) -> list[RequestResult]:
        loads = chat_requests(self._requests, self._pace.rate_scale, prefix=policy, model=MODEL)
        return await run_load(url, loads, ProgressBar(self._console, policy, len(loads)))

    async def _explain(self, policy: str, admin: str) -> None:
        answer = await _get(self._session, f"{admin}/explain?limit={DECISIONS_ASKED}")
        decision = most_telling(answer["decisions"])
        if decision is not None:
            self.explained.append(explain_line(policy, decision))

    async def _tell(self, policy: str, results: Sequence[RequestResult]) -> None:
        """What went wrong, and whether the figures can be trusted: nobody may have been late by much."""
        stats = [await _get(self._session, f"{url}/mock/stats") for url in self._fleet.urls]
        mean_lag = sum(each["lag_seconds_mean"] for each in stats) / len(stats) * 1000
        max_lag = max(each["lag_seconds_max"] for each in stats) * 1000
        late = max(result.late for result in results) * 1000
        self._console.line(
            f"{policy}: mock workers behind their model's time by {mean_lag:.1f} ms on average, "
            f"{max_lag:.0f} ms at most; load client by {late:.0f} ms at most"
        )
        for error in some_errors(results):
            self._console.line(f"{policy}: error: {error}")


def _introduce(
    console: Console, requests: Sequence[TraceRequest], pace: Pace, arguments: argparse.Namespace
) -> None:
    statistics = statistics_of(requests)
    source = arguments.trace or "synthetic, in the shape of the Mooncake conversation trace"
    console.line(f"workload: {source}")
    console.line(
        f"  {statistics.num_requests} requests; prompt tokens: mean {statistics.mean_input_tokens:,.0f}, "
        f"median {statistics.median_input_tokens:,}; output tokens: mean {statistics.mean_output_tokens:,.0f}"
    )
    console.line(
        f"  hit rate possible: {statistics.ideal_hit_rate:.1%} with one cache, "
        f"{hit_rate_dealt(requests, arguments.num_workers):.1%} when dealt by turn to {arguments.num_workers}"
    )
    console.line(
        f"engines: {arguments.num_workers} mock workers, {pace.speedup:.2f} times as fast as the published "
        f"curves; arrivals {pace.rate_scale:.2f} times as fast as recorded; utilisation {UTILISATION:.0%}"
    )


async def _all_answer(session: aiohttp.ClientSession, urls: Sequence[str]) -> bool:
    try:
        for url in urls:
            async with session.get(f"{url}/health") as response:
                if response.status != 200:
                    return False
    except aiohttp.ClientError:
        return False
    return True


async def _fleet_is_exact(session: aiohttp.ClientSession, admin: str, num_workers: int) -> bool:
    """All workers are known to the gateway, and their events are believed."""
    try:
        rows = (await _get(session, f"{admin}/workers"))["workers"]
    except aiohttp.ClientError:
        return False
    levels = [(row["trust"] or {}).get("level") for row in rows]
    return levels == ["exact"] * num_workers


async def _get(session: aiohttp.ClientSession, url: str) -> Any:  # noqa: ANN401 - JSON
    async with session.get(url, raise_for_status=True) as response:
        return await response.json()


async def _post(session: aiohttp.ClientSession, url: str, body: object) -> None:
    async with session.post(url, json=body, raise_for_status=True) as response:
        await response.read()


def _free_fleet_port(num_workers: int) -> int:
    bases = (0, EVENTS_PORT_OFFSET, EVENTS_PORT_OFFSET + REPLAY_PORT_OFFSET)
    return free_ports([base + i for base in bases for i in range(num_workers)])


def _parser() -> argparse.ArgumentParser:
    parser = command_line("demo", "Compares routing policies on a mock fleet, through a real gateway.")
    parser.add_argument("--trace", type=Path, help="trace in the Mooncake format (.jsonl, .gz or .xz)")
    parser.add_argument(
        "--requests", type=whole_number(2), default=DEFAULT_REQUESTS, help="how many requests"
    )
    parser.add_argument(
        "--policies",
        type=_policies,
        default=DEFAULT_POLICIES,
        help="separated by commas, each NAME or NAME,key=value,...",
    )
    parser.add_argument(
        "--num-workers",
        type=whole_number(1, EVENTS_PORT_OFFSET),
        default=DEFAULT_WORKERS,
        help="mock workers",
    )
    return parser


def _policies(text: str) -> list[str]:
    try:
        return [spell_policy(policy) for policy in parse_policies(text)]
    except PolicyError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
