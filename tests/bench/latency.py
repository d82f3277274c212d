"""What waits for the gateway: a lone request, and a worker whose client has left. Reported, never gated."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from statistics import median

import orjson

from tests.bench import processes, relay
from tests.bench.intervals import median_interval
from tests.bench.report import Result
from tests.bench.workloads import ALONE

Say = Callable[[str], None]

NUM_LEAVES = 40
PHASES = {"waiting": "while it waits for the first byte", "streaming": "in mid-stream"}


def alone(quick: bool, say: Say) -> list[Result]:
    """What the gateway and nginx add to a small request."""
    with (
        processes.running_workers() as worker_ports,
        relay.running_proxies(worker_ports, ALONE, with_pool=True) as proxies,
    ):
        return added(proxies, worker_ports[0], quick=quick, say=say)


def added(proxies: Sequence[relay.Proxy], worker_port: int, *, quick: bool, say: Say) -> list[Result]:
    """How much longer a small request takes than one that goes to the worker directly."""
    rounds = added_milliseconds(proxies, worker_port, quick=quick, say=say)
    return [
        Result(
            name="latency",
            what=f"{ALONE.description}, {name}, added {quantile}",
            unit="ms more than going direct",
            figure=median_interval(milliseconds),
            details={"added_milliseconds": milliseconds},
        )
        for (name, quantile), milliseconds in rounds.items()
    ]


def added_milliseconds(
    proxies: Sequence[relay.Proxy], worker_port: int, *, quick: bool, say: Say, scale: float = 1.0
) -> dict[tuple[str, str], list[float]]:
    """By proxy and quantile (p50, p99), one value a round; one request at a time, on open connections."""
    num_rounds = relay.NUM_ROUNDS_QUICK if quick else relay.NUM_ROUNDS
    rounds: dict[tuple[str, str], list[float]] = {}
    for i in range(num_rounds):
        say(f"latency: round {i + 1} of {num_rounds}")
        direct = relay.generate_load(worker_port, ALONE, scale)
        for proxy in proxies if i % 2 else reversed(proxies):
            report = relay.generate_load(proxy.port, ALONE, scale)
            for quantile in ("p50", "p99"):
                key = f"duration_{quantile}"
                rounds.setdefault((proxy.name, quantile), []).append((report[key] - direct[key]) * 1e3)
    return rounds


def leaving(quick: bool, say: Say) -> list[Result]:
    """How long after its client has gone a worker sees its own connection close."""
    say("leaving: clients go in two phases")
    command = [sys.executable, "-m", "tests.bench.leaving"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with (
        processes.running(command, processes.LOAD_CORES, **pipes) as process,
        processes.running_gateway([read_port(process)], "--policy", "round_robin") as (port, _),
    ):
        assert process.stdin
        assert process.stdout
        process.stdin.write(b"%d %d\n" % (port, NUM_LEAVES // 4 if quick else NUM_LEAVES))
        process.stdin.close()
        seconds: dict[str, list[float]] = orjson.loads(process.stdout.readline())
    return [
        Result(
            name="leaving",
            what=f"client gone {PHASES[phase]}: its worker knows (p50; slowest {max(taken) * 1e3:.3g} ms)",
            unit="ms",
            figure=median_interval([value * 1e3 for value in taken]),
            details={"median": median(taken), "seconds": taken},
        )
        for phase, taken in seconds.items()
    ]


def read_port(process: subprocess.Popen[bytes]) -> int:
    assert process.stdout
    return int(process.stdout.readline())
