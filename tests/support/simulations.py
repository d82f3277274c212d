"""Small simulations: traces made by hand, small fleets, and what larger comparisons are made of."""

from __future__ import annotations

import random
from dataclasses import replace

from loadgen.engine import EngineSettings
from loadgen.engine_profiles import PROFILES
from loadgen.sim.outcomes import Figures, figures_of
from loadgen.sim.settings import SimSettings
from loadgen.sim.simulation import Simulation
from loadgen.step_time import StepTime
from loadgen.traces import Trace, TraceRequest
from policies import parse_policy

STEADY = StepTime(step_constant=10.0, prefill_linear=0.05, prefill_quadratic=0.0, decode_linear=1e-4)
"""Milliseconds that can be added up by hand."""


def small_engine(**changes) -> EngineSettings:
    """32 blocks of 64 tokens, no noise, steps of 256 tokens."""
    settings = {
        "block_tokens": 64,
        "num_blocks": 33,
        "max_batched_tokens": 256,
        "max_model_len": 2048,
        "step_time": STEADY,
    }
    return EngineSettings(**(settings | changes))


def trace_of(
    *requests: tuple[float, int, int, list[int]], block_tokens: int = 64, session: str = ""
) -> Trace:
    """Each request is (arrival, prompt tokens, output tokens, ids)."""
    return Trace([TraceRequest(*each, session=session) for each in requests], block_tokens)


def random_trace(seed: int, num_requests: int = 120, rate: float = 4.0) -> Trace:
    """Prompts of a few families, of 1 to 12 blocks, arriving by chance."""
    rng = random.Random(seed)
    now, requests = 0.0, []
    for number in range(num_requests):
        now += rng.expovariate(rate)
        family, shared, own = rng.randint(0, 3), rng.randint(0, 8), rng.randint(1, 4)
        ids = [family * 100 + i for i in range(shared)] + [1000 + number * 10 + i for i in range(own)]
        tokens = len(ids) * 64 - rng.randint(0, 63)
        requests.append(TraceRequest(now, tokens, rng.randint(1, 60), ids))
    return Trace(requests, 64)


def simulated(trace: Trace, policy: str = "kv", **settings) -> Simulation:
    """A simulation that has run and holds together."""
    settings.setdefault("num_workers", 3)
    settings.setdefault("engine", small_engine(block_tokens=trace.block_tokens))
    simulation = Simulation(trace, parse_policy(policy), SimSettings(**settings))
    simulation.result = simulation.run()
    simulation.core.check()
    for worker in simulation.workers:
        worker.engine.check()
    return simulation


def compared(
    trace: Trace, policy: str, *, rate: float | None = None, profile: str = "70b", **settings
) -> Figures:
    """Figures at a mean rate (requests a second), with the first 5 % not measured."""
    if rate is not None:
        span = trace.requests[-1].arrival_seconds - trace.requests[0].arrival_seconds
        settings["rate_scale"] = rate * span / len(trace.requests)
    settings.setdefault("num_workers", 8)
    settings.setdefault("engine", PROFILES[profile].settings(trace.block_tokens))
    run = Simulation(trace, parse_policy(policy), SimSettings(**settings)).run()
    seed = settings.get("seed", 0)
    return figures_of(run, trace, policy=policy, name="", seed=seed, wall_seconds=0.0, warm_up=0.05)


def repeated(trace: Trace, times: int, num_common_ids: int) -> Trace:
    """A trace several times in a row; ids from `num_common_ids` on are others in each copy."""
    requests = trace.requests
    span = requests[-1].arrival_seconds * len(requests) / (len(requests) - 1)
    stride = 1 + max(max(request.hash_ids) for request in requests)
    copies = [
        replace(
            request,
            arrival_seconds=request.arrival_seconds + copy * span,
            hash_ids=[i if i < num_common_ids else i + copy * stride for i in request.hash_ids],
        )
        for copy in range(times)
        for request in requests
    ]
    return Trace(copies, trace.block_tokens)
