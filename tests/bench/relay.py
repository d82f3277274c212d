"""What relaying costs, beside nginx: CPU time of the proxy's processes for each request or streamed event.

The proxies stand before the same workers and take turns under the same load, round after round; which of them
goes first alternates. The figure is the ratio of median CPU times for one unit of work.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import orjson

from tests.bench import processes
from tests.bench.intervals import ratio_of_medians
from tests.bench.report import Result
from tests.bench.workloads import WORKLOADS, Workload

NUM_ROUNDS, NUM_ROUNDS_QUICK = 11, 3
SCALE_QUICK = 0.5
LOAD_SECONDS = 120
"""One run of a workload takes a second or two; far beyond that, something hangs."""


@dataclass
class Proxy:
    """A proxy under test and what its rounds gave."""

    name: str
    port: int
    process: subprocess.Popen[bytes]
    cpu_micros: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """By workload: microseconds of CPU for each unit, one value a round."""
    reports: dict[str, list[dict[str, float]]] = field(default_factory=lambda: defaultdict(list))

    def run(self, workload: Workload, scale: float, *, keep: bool = True) -> None:
        """One round of a workload."""
        before = processes.cpu_seconds(self.process)
        report = generate_load(self.port, workload, scale)
        used = processes.cpu_seconds(self.process) - before
        if report["num_errors"]:
            raise SystemExit(f"{self.name}, {workload.name}: {report['num_errors']:.0f} answers were wrong")
        if keep:
            num_units = report["num_events"] or report["num_requests"]
            self.cpu_micros[workload.name].append(used / num_units * 1e6)
            self.reports[workload.name].append(report)

    def median_of(self, workload: Workload, key: str) -> float:
        return median(report[key] for report in self.reports[workload.name])


def generate_load(port: int, workload: Workload, scale: float) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.bench.load", str(port), workload.name, str(scale)]
    finished = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        timeout=LOAD_SECONDS,
        check=True,
        preexec_fn=lambda: os.sched_setaffinity(0, processes.LOAD_CORES),
    )
    report: dict[str, float] = orjson.loads(finished.stdout)
    return report


def gateway_flags(workload: Workload) -> tuple[str, ...]:
    """Without KV events `kv` goes by its own decisions; without a tokenizer its blocks are of bytes."""
    return (
        ("--policy", "kv", "--tokens", "bytes") if workload.routed_by_prompt else ("--policy", "round_robin")
    )


@contextlib.contextmanager
def running_proxies(
    worker_ports: Sequence[int], workload: Workload, *, with_pool: bool, as_it_comes: bool = False
) -> Iterator[list[Proxy]]:
    """nginx, the same nginx through its port with pooled connections where asked for, and last kvgate."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvgate-bench-")))
        directory.chmod(0o755)  # nginx's worker process gives up root
        port, pooled_port, nginx = stack.enter_context(processes.running_nginx(worker_ports, directory))
        gateway = stack.enter_context(
            processes.running_gateway(worker_ports, *gateway_flags(workload), as_it_comes=as_it_comes)
        )
        pooled = [Proxy("nginx, pooled", pooled_port, nginx)] if with_pool else []
        yield [Proxy("nginx", port, nginx), *pooled, Proxy("kvgate", *gateway)]


def take_turns(
    proxies: Sequence[Proxy], workload: Workload, *, quick: bool, say: Callable[[str], None]
) -> None:
    """A round that does not count, then those that do."""
    num_rounds, scale = (NUM_ROUNDS_QUICK, SCALE_QUICK) if quick else (NUM_ROUNDS, 1.0)
    for proxy in proxies:
        proxy.run(workload, scale, keep=False)  # connections made, code warm
    for i in range(num_rounds):
        say(f"relay {workload.name}: round {i + 1} of {num_rounds}")
        for proxy in proxies if i % 2 else reversed(proxies):
            proxy.run(workload, scale)


def run(name: str, *, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """One workload; `say` is told of the progress. Over a stream's many events a connection of its own to the
    worker does not show, so nginx's pool is of interest without streams only."""
    workload = WORKLOADS[name]
    with (
        processes.running_workers() as worker_ports,
        running_proxies(worker_ports, workload, with_pool=not workload.num_events) as proxies,
    ):
        take_turns(proxies, workload, quick=quick, say=say)
        *yardsticks, kvgate = proxies
        memory = processes.resident_bytes(kvgate.process)
        return [compare(workload, yardstick, kvgate, memory) for yardstick in yardsticks]


def compare(workload: Workload, yardstick: Proxy, gateway: Proxy, memory: int) -> Result:
    """The bar holds against nginx as it is unless told otherwise."""
    ours, theirs = gateway.cpu_micros[workload.name], yardstick.cpu_micros[workload.name]
    latencies = {
        proxy.name: {
            key: proxy.median_of(workload, key)
            for key in ("first_byte_p50", "first_byte_p99", "duration_p50", "duration_p99")
        }
        for proxy in (yardstick, gateway)
    }
    return Result(
        name=f"relay {workload.name}",
        what=f"{gateway.name} ({median(ours):.1f} µs; {yardstick.name} {median(theirs):.1f})",
        unit=f"times the CPU per {workload.unit}",
        figure=ratio_of_medians(ours, theirs),
        bar=workload.bar if yardstick.name == "nginx" else None,
        details={
            "micros_yardstick": theirs,
            "micros_gateway": ours,
            "gateway_resident_bytes": memory,
            "what": workload.description,
            "latency_seconds": latencies,
        },
    )
