"""What relaying costs, beside nginx: CPU time of the proxy's processes for each request or streamed event.

Both proxies stand before the same worker and take turns under the same load, round after round; which of them
goes first alternates. The figure is the ratio of their median CPU times for one unit of work.
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


@contextlib.contextmanager
def proxies(worker_port: int) -> Iterator[tuple[Proxy, Proxy]]:
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvgate-bench-")))
        directory.chmod(0o755)  # nginx's worker process gives up root
        nginx = stack.enter_context(processes.running_nginx(worker_port, directory))
        gateway = stack.enter_context(processes.running_gateway(worker_port))
        yield Proxy("nginx", *nginx), Proxy("kvgate", *gateway)


def run(*, quick: bool, say: Callable[[str], None], only: Sequence[str] = tuple(WORKLOADS)) -> list[Result]:
    """Every workload in `only`; `say` is told of the progress."""
    num_rounds, scale = (NUM_ROUNDS_QUICK, SCALE_QUICK) if quick else (NUM_ROUNDS, 1.0)
    with processes.running_worker() as worker_port, proxies(worker_port) as (nginx, kvgate):
        for name in only:
            for proxy in (nginx, kvgate):
                proxy.run(WORKLOADS[name], scale, keep=False)  # connections made, code warm
            for i in range(num_rounds):
                say(f"relay {name}: round {i + 1} of {num_rounds}")
                for proxy in (nginx, kvgate) if i % 2 else (kvgate, nginx):
                    proxy.run(WORKLOADS[name], scale)
        memory = {proxy.name: processes.resident_bytes(proxy.process) for proxy in (nginx, kvgate)}
        return [compare(WORKLOADS[name], nginx, kvgate, memory) for name in only]


def compare(workload: Workload, nginx: Proxy, kvgate: Proxy, memory: dict[str, int]) -> Result:
    ours, theirs = kvgate.cpu_micros[workload.name], nginx.cpu_micros[workload.name]
    details: dict[str, object] = {
        "micros_nginx": theirs,
        "micros_kvgate": ours,
        "resident_bytes": memory,
        "latency_seconds": {
            proxy.name: {
                key: proxy.median_of(workload, key)
                for key in ("first_byte_p50", "first_byte_p99", "duration_p50", "duration_p99")
            }
            for proxy in (nginx, kvgate)
        },
    }
    return Result(
        name=f"relay {workload.name}",
        what=f"{workload.description} ({median(ours):.1f} against {median(theirs):.1f} µs)",
        unit=f"times nginx's CPU per {workload.unit}",
        figure=ratio_of_medians(ours, theirs),
        bar=workload.bar,
        details=details,
    )
