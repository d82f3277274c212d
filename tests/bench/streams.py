"""`python -m tests.bench.streams`: as many streams at once as descriptors allow, up to 10,000.

Gateway, load and worker are processes of their own. Each stream gets an event every 10 s. Measured while all
are open: the gateway's memory for each, how evenly events come, and how long liveness takes to be answered.
Exit 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from tests.bench.processes import (
    LOAD_CORES,
    cpu_seconds,
    resident_bytes,
    running,
    running_gateway,
    running_workers,
)

MEMORY_BAR = 40.0  # KiB a stream
LIVENESS_BAR = 0.1  # seconds, 99 of 100
SPREAD_BAR = 1  # events more for one stream than for another, since a window cuts anywhere

STREAMS_MAX = 10_000
DESCRIPTORS_SPARE = 500
GAP_SECONDS = 10
NUM_EVENTS = 7
"""Beyond the window this leaves 50 s to open all streams before the first one ends."""
WINDOW_SECONDS = 2 * GAP_SECONDS
PROBE_SECONDS = 0.1
LIVENESS = b"GET /livez HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n"


def num_streams_possible() -> int:
    """The gateway needs two descriptors for each stream."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(STREAMS_MAX, (hard - DESCRIPTORS_SPARE) // 2)


@dataclass
class Measured:
    """What one run brought."""

    num_streams: int
    memory_kib: float
    """Of the gateway's process, for each open stream."""
    cpu_share: float
    """Of one core, while all streams are open."""
    liveness: list[float]
    """Seconds, ascending."""
    load: dict[str, Any] = field(default_factory=dict)

    @property
    def liveness_p99(self) -> float:
        return self.liveness[len(self.liveness) * 99 // 100]

    def missed(self) -> Iterator[str]:
        """Each bar that is missed, in words."""
        least, most = self.load["events_per_stream"]
        if self.load["num_errors"] or self.load["num_open"] != self.num_streams:
            yield f"{self.load['num_errors']} streams broke, {self.load['num_open']} were open at once"
        if self.memory_kib > MEMORY_BAR:
            yield f"{self.memory_kib:.1f} KiB a stream is more than {MEMORY_BAR:.0f}"
        if self.liveness_p99 > LIVENESS_BAR:
            yield f"liveness took {self.liveness_p99 * 1e3:.0f} ms"
        if most - least > SPREAD_BAR:
            yield f"one stream got {least} events while another got {most}"


class Prober(threading.Thread):
    """Asks for liveness over new connections until it is told to stop."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.port = port
        self.seconds: list[float] = []
        self.enough = threading.Event()

    def run(self) -> None:
        while not self.enough.wait(PROBE_SECONDS):
            self.seconds.append(self.probe())

    def probe(self) -> float:
        """Infinite when there is no good answer."""
        started_at = time.perf_counter()
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), timeout=10) as s,
        ):
            s.sendall(LIVENESS)
            if s.recv(4096).startswith(b"HTTP/1.1 200 "):
                return time.perf_counter() - started_at
        return float("inf")

    def stop(self) -> list[float]:
        self.enough.set()
        self.join()
        return sorted(self.seconds)


def measure(num_streams: int, policy: str) -> Measured:
    with (
        running_workers(1) as worker_ports,
        running_gateway(worker_ports, "--policy", policy) as (port, gateway),
    ):
        arguments = [port, num_streams, NUM_EVENTS, GAP_SECONDS * 1000, WINDOW_SECONDS]
        command = [sys.executable, "-m", "tests.bench.stream_load", *map(str, arguments)]
        idle = resident_bytes(gateway)
        with running(command, LOAD_CORES, stdout=subprocess.PIPE) as load:
            assert load.stdout
            expect(load.stdout.readline(), b"open")
            memory, cpu, prober = resident_bytes(gateway) - idle, cpu_seconds(gateway), Prober(port)
            prober.start()
            expect(load.stdout.readline(), b"watched")
            liveness = prober.stop()
            cpu = cpu_seconds(gateway) - cpu
            report = orjson.loads(load.stdout.readline())
    return Measured(num_streams, memory / num_streams / 1024, cpu / WINDOW_SECONDS, liveness, report)


def expect(line: bytes, word: bytes) -> None:
    if line.strip() != word:
        raise SystemExit(f"the load ended early: {line!r}")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.streams", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--streams", type=int, default=num_streams_possible(), help="how many (default: all)")
    parser.add_argument("--policy", default="round_robin")
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    measured = measure(arguments.streams, arguments.policy)
    missed = list(measured.missed())
    sys.stdout.write("\n".join([*lines(measured), *(f"MISSED: {text}" for text in missed)]) + "\n")
    return int(bool(missed))


def lines(measured: Measured) -> Iterator[str]:
    load, liveness = measured.load, measured.liveness
    least, most = load["events_per_stream"]
    rate = measured.num_streams / load["opened_in"]
    num_open, num_errors = load["num_open"], load["num_errors"]
    yield f"{num_open} streams at once, each an event every {GAP_SECONDS} s; {num_errors} errors"
    yield f"opened in {load['opened_in']:.1f} s, {rate:.0f} a second"
    yield f"gateway memory: {measured.memory_kib:.1f} KiB a stream (bar {MEMORY_BAR:.0f})"
    yield f"gateway CPU: {measured.cpu_share * 100:.0f} % of a core"
    yield f"events a stream in {WINDOW_SECONDS} s: {least} to {most}"
    yield "seconds between events: " + ", ".join(f"{p} {load[f'gap_{p}']:.3f}" for p in ("p1", "p50", "p99"))
    median, slowest = liveness[len(liveness) // 2] * 1e3, liveness[-1] * 1e3
    yield (
        f"liveness: p50 {median:.1f} ms, p99 {measured.liveness_p99 * 1e3:.1f} ms, slowest {slowest:.1f} ms"
        f" (bar {LIVENESS_BAR * 1e3:.0f} ms)"
    )


if __name__ == "__main__":
    sys.exit(main())
