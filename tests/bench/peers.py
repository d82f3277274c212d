"""`python -m tests.bench.peers`: the relay bench's rows for kvgate, nginx and three other routers.

Each router is installed from the package index into an environment of its own under .venv-peers/ and runs
as it comes, by turns; for the row of prompts with its `cache_aware` policy. Reported, never gated. What can't
be installed or started is left out and named. `--quick` runs few rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.bench import latency, processes, relay, report
from tests.bench.__main__ import progress
from tests.bench.report import Result
from tests.bench.workloads import ALONE, WORKLOADS, Workload

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
            "--worker-urls", *processes.urls(worker_ports), "--policy", policy, "--log-level", "error",
            "--prometheus-port", str(processes.free_port()),
        ]  # fmt: skip


PEERS = (
    Peer("sglang-router", "0.3.2", ("python", "-m", "sglang_router.launch_router")),
    Peer("vllm-router", "0.1.17", ("vllm-router",)),
    Peer("smg", "1.13.0", ("smg", "launch")),
)


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
                processes.running(command, processes.PROXY_CORES, stdout=subprocess.DEVNULL)
            )
            try:
                processes.wait_until_ready(port, process, "/readiness")
                proxies.append(relay.Proxy(peer.name, port, process))
            except SystemExit as error:
                sys.stdout.write(f"{peer.name} did not start: {error}\n")
        yield proxies


def compare(workload: Workload, peers: Sequence[Peer], *, quick: bool) -> list[Result]:
    """CPU of every router for one unit of work, in multiples of nginx's."""
    with (
        processes.running_workers() as worker_ports,
        relay.running_proxies(worker_ports, workload, with_pool=False) as (nginx, kvgate),
        running(peers, worker_ports, workload) as others,
    ):
        gateways = [kvgate, *others]
        relay.take_turns([nginx, *gateways], workload, quick=quick, say=progress)
        return [
            replace(
                relay.compare(workload, nginx, gateway, processes.resident_bytes(gateway.process)), bar=None
            )
            for gateway in gateways
        ]


def added_latency(peers: Sequence[Peer], *, quick: bool) -> list[Result]:
    with (
        processes.running_workers() as worker_ports,
        relay.running_proxies(worker_ports, ALONE, with_pool=False) as ours,
        running(peers, worker_ports, ALONE) as others,
    ):
        return latency.added([*ours, *others], worker_ports[0], quick=quick, say=progress)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.peers", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--quick", action="store_true", help="few rounds: a look, not a verdict")
    quick = parser.parse_args().quick
    peers = install(PEERS)
    results: list[Result] = []
    for workload in WORKLOADS.values():
        results += compare(workload, peers, quick=quick)
    results += added_latency(peers, quick=quick)
    progress("")
    sys.stdout.write(f"{report.table(results)}\n\nwritten to {report.write(results)}\n")


if __name__ == "__main__":
    main()
