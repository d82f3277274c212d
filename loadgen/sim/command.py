"""`kvgate sim`: policies compared on a trace, in virtual time. Flags, files, processes; the rest is pure."""

from __future__ import annotations

import argparse
import gc
import os
import random
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter

import msgspec

from loadgen.arguments import INTERRUPTED, above_zero, command_line, share, whole_number, zero_or_more
from loadgen.console import Console
from loadgen.engine import EngineSettings
from loadgen.engine_profiles import DEFAULT_PROFILE, PROFILES
from loadgen.sim.outcomes import Figures, figures_of
from loadgen.sim.pool_options import (
    WHOLE_WORKERS,
    add_pool_options,
    modes_of,
    policy_text,
    pools_of,
    require_a_fleet,
)
from loadgen.sim.settings import PoolSettings, SimSettings
from loadgen.sim.simulation import Simulation
from loadgen.sim.table import TABLE_NOTE, render_figures, render_pools
from loadgen.trace_files import read_any_trace
from loadgen.traces import Trace, TraceError, statistics_of
from policies import parse_policy

DEFAULT_POLICIES = ("round_robin", "least_loaded", "kv")
GC_THRESHOLDS = (50_000, 20, 100)
"""A simulation makes no circles of garbage; looking for them less often saves 5 % of its time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One policy's run, as it is handed to a process."""

    policy: str
    trace: Trace
    name: str
    settings: SimSettings
    warm_up: float


def main(argv: Sequence[str]) -> int:
    """Exit code 0, or 1 when the trace can't be read or the figures can't be written."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    require_a_fleet(parser, arguments)
    console = Console()
    try:
        return _compare(arguments, console)
    except (TraceError, OSError) as error:
        Console(sys.stderr).line(f"kvgate sim: {error}")
        return 1
    except KeyboardInterrupt:
        console.line("stopped")
        return INTERRUPTED


def simulate(job: Job) -> Figures:
    """Runs in a process of its own when there are several policies."""
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    started = perf_counter()
    run = Simulation(job.trace, parse_policy(job.policy), job.settings).run()
    return figures_of(
        run,
        job.trace,
        policy=job.policy,
        name=job.name,
        seed=job.settings.seed,
        wall_seconds=perf_counter() - started,
        warm_up=job.warm_up,
        pools=job.settings.pools,
    )


def _compare(arguments: argparse.Namespace, console: Console) -> int:
    trace = read_any_trace(arguments.trace, random.Random(arguments.seed), arguments.requests)
    engine = PROFILES[arguments.engine].settings(trace.block_tokens, arguments.capacity_tokens)
    trace = _that_fits(trace, engine, console)
    _introduce(console, trace, arguments)
    jobs = [
        Job(
            policy=policy,
            trace=trace,
            name=str(arguments.trace),
            settings=_settings(arguments, engine, pools),
            warm_up=arguments.warm_up,
        )
        for policy in arguments.policy or DEFAULT_POLICIES
        for pools in pools_of(arguments)
    ]
    figures = []
    for done in _all_figures(jobs, arguments.jobs):
        figures.append(done)
        speed = done.num_requests / done.wall_s
        mode = f", {done.pools.mode}" if done.pools else ""
        console.line(f"{done.policy}{mode}: {done.wall_s:.1f} s, {speed:,.0f} requests a second")
    console.line()
    console.line(render_figures(figures))
    console.line(TABLE_NOTE)
    if table := render_pools(figures):
        console.line()
        console.line(table)
    if arguments.json:
        arguments.json.write_bytes(msgspec.json.encode([each.as_json() for each in figures]) + b"\n")
    return 0


def _all_figures(jobs: Sequence[Job], num_processes: int) -> Iterator[Figures]:
    """In the order of the jobs."""
    if min(num_processes, len(jobs)) == 1:
        yield from map(simulate, jobs)
        return
    with ProcessPoolExecutor(min(num_processes, len(jobs))) as pool:
        yield from pool.map(simulate, jobs)


def _that_fits(trace: Trace, engine: EngineSettings, console: Console) -> Trace:
    """A request that no worker could ever hold would be refused by a real engine too."""
    fitting = [
        request
        for request in trace.requests
        if request.input_tokens + request.output_tokens <= engine.context_limit
    ]
    if not fitting:
        raise TraceError(f"no request fits into a cache of {engine.context_limit:,} tokens")
    if num_left := len(trace.requests) - len(fitting):
        console.line(f"left out: {num_left} requests of more than {engine.context_limit:,} tokens")
    return replace(trace, requests=fitting)


def _settings(
    arguments: argparse.Namespace, engine: EngineSettings, pools: PoolSettings | None
) -> SimSettings:
    return SimSettings(
        pools=pools,
        num_workers=arguments.num_workers,
        engine=engine,
        seed=arguments.seed,
        rate_scale=arguments.rate_scale,
        concurrency=arguments.concurrency,
        event_delay=arguments.event_delay_ms / 1000,
        event_loss=arguments.event_loss,
        event_replay=not arguments.no_event_replay,
        restart_every=arguments.restart_every,
        downtime=arguments.downtime,
    )


def _introduce(console: Console, trace: Trace, arguments: argparse.Namespace) -> None:
    statistics = statistics_of(trace.requests, trace.block_tokens)
    console.line(
        f"{arguments.trace}: {statistics.num_requests:,} requests in blocks of {trace.block_tokens}; prompt "
        f"tokens: mean {statistics.mean_input_tokens:,.0f}, median {statistics.median_input_tokens:,}; "
        f"output tokens: mean {statistics.mean_output_tokens:,.0f}"
    )
    console.line(f"{_fleet(arguments)}, {_load(trace, arguments)}")
    console.line(f"engine {arguments.engine}: {PROFILES[arguments.engine].help}")


def _fleet(arguments: argparse.Namespace) -> str:
    if not modes_of(arguments):
        return f"{arguments.num_workers} workers"
    whole = f", {arguments.num_workers} whole ones" if arguments.num_workers else ""
    pools = f"{arguments.prefill} prefill and {arguments.decode} decode workers"
    return f"{pools}{whole}, {arguments.transfer_gbps:g} Gbit/s between them"


def _load(trace: Trace, arguments: argparse.Namespace) -> str:
    if arguments.concurrency:
        return f"closed loop of {arguments.concurrency}"
    seconds = max(request.arrival_seconds for request in trace.requests) / arguments.rate_scale
    if num_sessions := len({request.session for request in trace.requests if request.session}):
        return f"{num_sessions} sessions that begin within {seconds:,.0f} s"
    return f"{len(trace.requests) / seconds:.2f} requests/s" if seconds else "all requests at once"


def _parser() -> argparse.ArgumentParser:
    parser = command_line("sim", "Compares routing policies on a trace, in virtual time, without a network.")
    option = partial(parser.add_argument)
    option(
        "--trace",
        type=Path,
        required=True,
        help="Mooncake, Azure 2023 or agent sessions; plain, .gz or .xz, or a folder with one of them",
    )
    option(
        "--policy",
        action="append",
        type=policy_text,
        help=f"NAME or NAME,key=value,...; may be given several times ({', '.join(DEFAULT_POLICIES)})",
    )
    option("--num-workers", type=whole_number(0, 1024), help=f"whole workers ({WHOLE_WORKERS}; with pools 0)")
    add_pool_options(parser)
    option("--rate-scale", type=above_zero, default=1.0, help="arrivals so many times as fast as recorded")
    option("--concurrency", type=whole_number(1), help="a closed loop of so many clients, no arrival times")
    option("--requests", type=whole_number(1), help="only the first so many")
    option("--seed", type=int, default=0, help="of everything that is left to chance")
    option("--warm-up", type=share, default=0.0, help="share of the first requests that is not measured")
    option("--engine", choices=PROFILES, default=DEFAULT_PROFILE, help="step times and cache size")
    option("--capacity-tokens", type=whole_number(1024), help="cache of a worker, instead of the engine's")
    option("--event-delay-ms", type=zero_or_more, default=5.0, help="of each KV-event message")
    option("--event-loss", type=share, default=0.0, help="share of KV-event messages that is lost")
    option("--no-event-replay", action="store_true", help="what is lost cannot be asked for again")
    option("--restart-every", type=above_zero, help="seconds from death to death of a worker, on average")
    option("--downtime", type=above_zero, default=30.0, help="seconds until such a worker is back")
    option("--jobs", type=whole_number(1), default=os.cpu_count() or 1, help="policies simulated at a time")
    option("--json", type=Path, help="file for the figures: one array, an object for each policy")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
