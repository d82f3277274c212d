"""The simulator and the mock fleet behind a real gateway put policies in the same order.

Absolute times are not compared: on a busy machine sockets are late. Hit rates do not depend on that.
"""

from __future__ import annotations

import asyncio
import random
import sys
from itertools import count, islice

import msgspec

from loadgen.demo import NUM_BLOCKS
from loadgen.engine import EngineSettings
from loadgen.pacing import pace_for
from loadgen.sim.outcomes import figures_of
from loadgen.step_time import published_curves
from loadgen.trace_files import read_trace
from loadgen.traces import BLOCK_TOKENS, Trace
from tests.support.simulations import simulated

NUM_WORKERS = 3
NUM_REQUESTS = 120
POLICIES = ("round_robin", "kv")


def mixed_prompts(path):
    """Prompts of twelve families that begin alike, most of them short, some very long."""
    rng = random.Random(6)
    fresh_ids = count(10_000)
    at = 0.0
    with path.open("wb") as file:
        for _ in range(NUM_REQUESTS):
            num_own, family = rng.choice([1, 1, 1, 1, 1, 1, 16, 64]), rng.randrange(12)
            ids = [*range(family * 100, family * 100 + 8), *islice(fresh_ids, num_own)]
            tokens = len(ids) * BLOCK_TOKENS
            line = {"timestamp": at, "input_length": tokens, "output_length": 20, "hash_ids": ids}
            file.write(msgspec.json.encode(line) + b"\n")
            at += rng.expovariate(1 / 100)
    return path


async def over_sockets(trace):
    """Mean TTFT and hit rate by policy, from the demo's table."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "router", "demo", "--trace", str(trace), "--policies", ",".join(POLICIES),
        "--num-workers", str(NUM_WORKERS), stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    rows = [line.split() for line in output.decode().splitlines()]
    found = {words[0]: words for words in rows if len(words) > 8 and words[0] in POLICIES}
    return {policy: (float(words[3]), float(words[-3].rstrip("%")) / 100) for policy, words in found.items()}


def in_virtual_time(path):
    requests = read_trace(path)
    pace = pace_for(requests, NUM_WORKERS)
    capacity = (NUM_BLOCKS - 1) * EngineSettings().block_tokens
    engine = EngineSettings(
        block_tokens=BLOCK_TOKENS,
        num_blocks=capacity // BLOCK_TOKENS + 1,
        step_time=published_curves(capacity),
        speedup=pace.speedup,
    )
    trace = Trace(requests)
    found = {}
    for policy in POLICIES:
        simulation = simulated(
            trace, policy, num_workers=NUM_WORKERS, engine=engine, rate_scale=pace.rate_scale
        )
        figures = figures_of(simulation.result, trace, policy=policy, name="", seed=0, wall_seconds=0.0)
        found[policy] = (figures.ttft_ms.mean, figures.hit_rate)
    return found


async def test_policies_come_in_the_same_order(tmp_path):
    path = mixed_prompts(tmp_path / "trace.jsonl")
    real, virtual = await over_sockets(path), in_virtual_time(path)
    for found in (real, virtual):
        assert found["kv"][0] < 0.75 * found["round_robin"][0], (real, virtual)
    for policy in POLICIES:
        assert abs(real[policy][1] - virtual[policy][1]) < 0.08, (real, virtual)
