"""What the prompts of `prompt32k` cost inside the gateway, stage by stage, without sockets.

`python -m tests.bench.prompt` prints JSON: microseconds of a request in each stage, the median of rounds,
for four workers without KV events and 32 requests in flight. `--requests N` serves N requests once, to count
instructions: the difference of two runs under `valgrind --tool=callgrind` is exact where times are not.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
from collections import defaultdict, deque
from itertools import count, pairwise
from statistics import median
from time import perf_counter

import orjson

from policies.types import RoutingRequest, ServedModel, Worker
from router.core.outcome import Outcome
from router.core.routing import RoutingCore
from router.tokens.base import TokenizeTarget
from router.tokens.bytes import BytesTokens
from router.wire.endpoints import lookup
from router.wire.openai import parse_body
from tests.bench.workloads import WORKLOADS
from tests.support.fleets import make_core

WORKLOAD = WORKLOADS["prompt32k"]
NUM_WORKERS = 4
NUM_ROUNDS = 11
REQUESTS_PER_ROUND = 500
SECONDS_BETWEEN_REQUESTS = 0.0005
STAGES = ("parse", "tokens", "route", "finish")


class Host:
    """The fleet as the token source sees it: nobody to ask."""

    def __init__(self, core: RoutingCore) -> None:
        self.hash_spaces = core.hash_spaces

    def tokenize_targets(self, model: str) -> tuple[TokenizeTarget, ...]:
        return ()

    def wants_exact_overlap(self, model: str) -> bool:
        return False

    def fell_back(self, reason: str) -> None:
        raise AssertionError(reason)


class Gateway:
    """The gateway's way from a body to the end of its booking."""

    def __init__(self) -> None:
        models = (ServedModel("bench"),)
        self.core = make_core(
            [Worker(id=f"w{i}", url=f"http://w{i}", models=models) for i in range(NUM_WORKERS)]
        )
        self.tokens = BytesTokens(Host(self.core))
        self.endpoint = lookup("/v1/completions")
        self.in_flight: deque[str] = deque()
        self.numbers = count()

    async def serve(self, number: int, body: bytes) -> list[float]:
        """Seconds of each stage; with each request one of those in flight ends."""
        now, request_id = number * SECONDS_BETWEEN_REQUESTS, f"r{number}"
        moments = [perf_counter()]
        parsed = parse_body(body, self.endpoint)
        moments.append(perf_counter())
        prompt = await self.tokens.prompt(parsed, self.endpoint, self.core.resolve(parsed.model))
        moments.append(perf_counter())
        request = RoutingRequest(id=request_id, model="bench", num_prompt_tokens=prompt.num_tokens)
        self.core.route(request, prompt, now=now)
        moments.append(perf_counter())
        self.in_flight.append(request_id)
        if len(self.in_flight) > WORKLOAD.num_connections:
            ended = self.in_flight.popleft()
            self.core.first_token(ended, now=now)
            self.core.finish(ended, Outcome.DONE, now=now)
        moments.append(perf_counter())
        self.core.expire(now=now)
        return [end - start for start, end in pairwise(moments)]


async def serve(gateway: Gateway, num_requests: int) -> dict[str, list[float]]:
    """Microseconds by stage, one value a request."""
    taken: dict[str, list[float]] = defaultdict(list)
    for _ in range(num_requests):
        number = next(gateway.numbers)
        _, _, body = WORKLOAD.request(number).partition(b"\r\n\r\n")
        for stage, seconds in zip(STAGES, await gateway.serve(number, body), strict=True):
            taken[stage].append(seconds * 1e6)
    return taken


def rounds(num_rounds: int = NUM_ROUNDS) -> dict[str, list[float]]:
    """The median of each round, by stage and for all of them together."""
    gateway = Gateway()
    gc.freeze()
    medians: dict[str, list[float]] = defaultdict(list)
    asyncio.run(serve(gateway, REQUESTS_PER_ROUND))  # code warm, conversations known
    for _ in range(num_rounds):
        taken = asyncio.run(serve(gateway, REQUESTS_PER_ROUND))
        for stage, micros in taken.items():
            medians[stage].append(median(micros))
        medians["all"].append(median(map(sum, zip(*taken.values(), strict=True))))
    gc.unfreeze()
    return medians


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.prompt", allow_abbrev=False)
    parser.add_argument("--requests", type=int, help="serve so many once, and print nothing")
    num_requests = parser.parse_args().requests
    if num_requests is not None:
        asyncio.run(serve(Gateway(), num_requests))
        return
    figures = {stage: round(median(micros), 1) for stage, micros in rounds().items()}
    sys.stdout.buffer.write(orjson.dumps(figures, option=orjson.OPT_INDENT_2) + b"\n")


if __name__ == "__main__":
    main()
