"""`python -m tests.bench.peers`: kvgate beside nginx and three other routers, row by row, a verdict for each.

Each router is installed from the package index into an environment of its own under .venv-peers/ and runs
as it comes, its logging included, by turns with the others; for the row of prompts with its `cache_aware`
policy. The rows are those of the relay bench, one of chats and one of latency, before workers that keep
their connections; those that are not streamed come again before workers that close each connection after its
answer. Reported, never gated. What can't be installed or started is left out and named. `--quick` runs few
rounds, `--only ROW` (repeatable) runs some of them.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench import latency, processes, relay, report
from tests.bench.__main__ import progress
from tests.bench.intervals import median_interval, ratio_of_medians
from tests.bench.ranking import Row, table
from tests.bench.report import Result
from tests.bench.workloads import ALONE, CHAT, WORKLOADS, Workload

ENVIRONMENTS = Path(".venv-peers")


@dataclass(frozen=True)
class Peer:
    """A router of the Rust family that takes --worker-urls, --policy and the usual names."""

    name: str
    version: str
    command: tuple[str, ...]
    """Its program below the environment's bin/, and a subcommand."""

    @property
    def environment(self) -> Path:
        return ENVIRONMENTS / f"{self.name}-{self.version}"

    def install(self) -> None:
        """Raises CalledProcessError."""
        if not self.environment.exists():
            subprocess.run([sys.executable, "-m", "venv", self.environment], check=True)
        pip = [self.environment / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "-q"]
        subprocess.run([*pip, "install", f"{self.name}=={self.version}"], check=True)

    def start(self, port: int, worker_ports: Sequence[int], policy: str) -> list[str]:
        program, *rest = self.command
        return [
            str(self.environment / "bin" / program), *rest, "--host", "127.0.0.1", "--port", str(port),
            "--worker-urls", *processes.urls(worker_ports), "--policy", policy,
            "--prometheus-port", str(processes.free_port()),
        ]  # fmt: skip


PEERS = (
    Peer("sglang-router", "0.3.2", ("python", "-m", "sglang_router.launch_router")),
    Peer("vllm-router", "0.1.17", ("vllm-router",)),
    Peer("smg", "1.13.0", ("smg", "launch")),
)


LATENCY_SCALE = 4.0
"""1,200 requests a round: twelve are beyond p99."""


@dataclass(frozen=True)
class Comparison:
    """A load, and whether the workers close each connection after its answer."""

    workload: Workload
    close: bool = False

    @property
    def name(self) -> str:
        return f"{self.workload.name}-close" if self.close else self.workload.name


_LOADS = (*WORKLOADS.values(), CHAT, ALONE)
COMPARISONS = {
    comparison.name: comparison
    for comparison in (
        *(Comparison(workload) for workload in _LOADS),
        *(Comparison(workload, close=True) for workload in _LOADS if not workload.num_events),
    )
}


def install(peers: Sequence[Peer]) -> list[Peer]:
    """Those that are there afterwards."""
    present = []
    for peer in peers:
        try:
            peer.install()
            present.append(peer)
        except subprocess.CalledProcessError:
            sys.stdout.write(f"{peer.name} {peer.version} could not be installed\n")
    return present


@contextlib.contextmanager
def running(
    peers: Sequence[Peer], worker_ports: Sequence[int], workload: Workload
) -> Iterator[list[relay.Proxy]]:
    """Those that start."""
    policy = "cache_aware" if workload.routed_by_prompt else "round_robin"
    with contextlib.ExitStack() as stack:
        proxies = []
        for peer in peers:
            port = processes.free_port()
            command = peer.start(port, worker_ports, policy)
            process = stack.enter_context(
                processes.running(
                    command, processes.PROXY_CORES, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
            )
            try:
                processes.wait_until_ready(port, process, "/readiness")
                proxies.append(relay.Proxy(peer.name, port, process))
            except SystemExit as error:
                sys.stdout.write(f"{peer.name} did not start: {error}\n")
        yield proxies


def compare(comparison: Comparison, peers: Sequence[Peer], *, quick: bool) -> list[Row]:
    """nginx, kvgate and the peers before the same workers."""
    workload = comparison.workload
    with (
        processes.running_workers(close=comparison.close) as worker_ports,
        relay.running_proxies(worker_ports, workload, with_pool=False, as_it_comes=True) as ours,
        running(peers, worker_ports, workload) as others,
    ):
        proxies = [*ours, *others]
        if workload is ALONE:
            return latency_rows(comparison, proxies, quick=quick)
        relay.take_turns(proxies, workload, quick=quick, say=progress)
    return [
        Row(
            name=comparison.name,
            unit=f"µs of CPU, {workload.unit}",
            rounds={proxy.name: proxy.cpu_micros[workload.name] for proxy in proxies},
        )
    ]


def latency_rows(comparison: Comparison, proxies: Sequence[relay.Proxy], *, quick: bool) -> list[Row]:
    """What each adds to one small request at a time, sent directly over a connection that is kept."""
    with processes.running_workers() as (worker_port, *_):
        added = latency.added_milliseconds(
            proxies, worker_port, quick=quick, say=progress, scale=LATENCY_SCALE
        )
    return [
        Row(
            name=f"{comparison.name}, {quantile}",
            unit="µs added",
            rounds={proxy.name: [ms * 1e3 for ms in added[proxy.name, quantile]] for proxy in proxies},
        )
        for quantile in ("p50", "p99")
    ]


def results(row: Row) -> Iterator[Result]:
    """For the JSON lines, with every round."""
    for name, rounds in row.rounds.items():
        yield Result(
            name=f"peers {row.name}",
            what=name,
            unit=row.unit,
            figure=median_interval(rounds),
            details={"rounds": rounds, "times_nginx": ratio_of_medians(rounds, row.rounds["nginx"]).value},
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.peers", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--quick", action="store_true", help="few rounds: a look, not a verdict")
    parser.add_argument("--only", action="append", choices=list(COMPARISONS), help="a row (repeatable)")
    arguments = parser.parse_args()
    peers = install(PEERS)
    rows: list[Row] = []
    for name in arguments.only or COMPARISONS:
        rows += compare(COMPARISONS[name], peers, quick=arguments.quick)
    progress("")
    written = report.write([result for row in rows for result in results(row)])
    sys.stdout.write(f"{table(rows)}\n\nwritten to {written}\n")


if __name__ == "__main__":
    main()
