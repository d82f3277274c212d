"""What a decision of kv and of latency costs: route and finish, without and with hashing the prompt.

`python -m tests.bench.decision` prints JSON: microseconds for a prompt of 8,192 tokens (512 blocks of 16) by
number of workers. "hot": one worker holds the whole prompt, half of the others half of it, and requests with
that prefix are active. "cold": nobody has seen the prompt. Median of rounds in which the cases take turns.
"""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable
from itertools import count
from statistics import median
from time import perf_counter

import orjson

from indexer.blocks import HashSpace, Unit
from policies import make_policy
from policies.types import RoutingRequest
from router.core.outcome import Outcome
from router.core.prompt import Prompt
from router.core.routing import RoutingCore
from tests.support.columns import MODEL
from tests.support.fleets import BLOCK, Engine, chain_of, make_core, prompt_of, publishing

NUM_TOKENS = 8_192
FLEETS = (8, 32, 128)
NUM_ROUNDS = 15
DECISIONS_PER_ROUND = 40
VOCABULARY = 150_000
SECONDS_BETWEEN_DECISIONS = 0.05

ids = count()


def tokens(rng: random.Random) -> list[int]:
    return [rng.randrange(VOCABULARY) for _ in range(NUM_TOKENS)]


def hot_core(num_workers: int, shared: list[int]) -> RoutingCore:
    """Two requests stay active on each fourth worker."""
    core = make_core([publishing(f"w{number}", num_blocks=100_000) for number in range(num_workers)])
    for number in range(num_workers):
        engine = Engine(core, f"w{number}")
        if number % 2 == 0:
            engine.store(shared if number == 0 else shared[: NUM_TOKENS // 2])
    for _ in range(num_workers // 2):
        core.route(request(), prompt_of(shared), now=0.0)
    return core


def under_latency(core: RoutingCore) -> RoutingCore:
    """The same core; only the holder of the whole prompt becomes idle, so that both policies choose it."""
    for decision in core.decisions():
        core.first_token(decision.request_id, now=0.0)
        if decision.worker.id == "w0":
            core.finish(decision.request_id, Outcome.DONE, now=0.0)
    core.set_policy(make_policy("latency"))
    return core


def request() -> RoutingRequest:
    return RoutingRequest(id=f"r{next(ids)}", model=MODEL, stream=True)


def decide(core: RoutingCore, prompt: Prompt) -> tuple[float, float]:
    """Microseconds of `route`, and of `first_token` and `finish`. Decisions are 50 ms apart."""
    asked = request()
    now = next(ids) * SECONDS_BETWEEN_DECISIONS
    start = perf_counter()
    core.route(asked, prompt, now=now)
    routed = perf_counter()
    core.first_token(asked.id, now=now)
    core.finish(asked.id, Outcome.DONE, now=now)
    ended = perf_counter()
    core.expire(now=now)
    return (routed - start) * 1e6, (ended - routed) * 1e6


def hash_and_decide(core: RoutingCore, asked: list[int]) -> tuple[float, float]:
    start = perf_counter()
    chain = chain_of(asked)
    hashed = (perf_counter() - start) * 1e6
    prompt = Prompt(NUM_TOKENS, Unit.TOKENS, {HashSpace(MODEL, BLOCK): chain}, exact=True)
    route, finish = decide(core, prompt)
    return route + hashed, finish


def cases() -> dict[str, Callable[[], tuple[float, float]]]:
    rng = random.Random(1)
    shared = tokens(rng)
    made: dict[str, Callable[[], tuple[float, float]]] = {}
    for num_workers in FLEETS:
        core, prompt = hot_core(num_workers, shared), prompt_of(shared)
        made[f"hot_{num_workers}"] = lambda core=core, prompt=prompt: decide(core, prompt)
        made[f"cold_{num_workers}"] = lambda core=core: decide(core, prompt_of(tokens(rng)))
        made[f"hot_with_hashing_{num_workers}"] = lambda core=core: hash_and_decide(core, shared)
        core = under_latency(hot_core(num_workers, shared))
        made[f"latency_hot_{num_workers}"] = lambda core=core, prompt=prompt: decide(core, prompt)
        made[f"latency_cold_{num_workers}"] = lambda core=core: decide(core, prompt_of(tokens(rng)))
    return made


def samples(num_rounds: int = NUM_ROUNDS) -> dict[str, list[tuple[float, float]]]:
    """By case what each decision took, DECISIONS_PER_ROUND of them a round."""
    taken: dict[str, list[tuple[float, float]]] = {}
    runs = cases()
    gc.freeze()
    for _ in range(num_rounds):
        for name, run in runs.items():
            taken.setdefault(name, []).extend(run() for _ in range(DECISIONS_PER_ROUND))
    gc.unfreeze()
    return taken


def measure() -> dict[str, dict[str, float]]:
    """Median microseconds of each case."""
    return {
        name: {
            "route": round(median(route for route, _ in taken), 1),
            "finish": round(median(finish for _, finish in taken), 1),
            "route_and_finish": round(median(route + finish for route, finish in taken), 1),
        }
        for name, taken in samples().items()
    }


def main() -> None:
    sys.stdout.buffer.write(orjson.dumps(measure(), option=orjson.OPT_INDENT_2) + b"\n")


if __name__ == "__main__":
    main()
