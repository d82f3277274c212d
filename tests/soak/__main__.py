"""KV events at twice the memory of the index, for minutes, against a feed that holds everything.

`python -m tests.soak` ends with 1 when memory grows, when the budget is exceeded or when an overlap is
claimed that the other feed does not know of.
"""

from __future__ import annotations

import argparse
import random
import sys
from time import perf_counter

import psutil

from indexer.budget import BLOCK_BYTES
from indexer.feed import KvFeed
from tests.support.event_traffic import BLOCK_TOKENS, MODEL, Feeder, Request, chain_of, requests

NUM_WORKERS = 4
CAPACITY_BLOCKS = 50_000
REQUESTS_PER_REPORT = 2_000
WARM_UP_REPORTS = 8
GROWTH_MAX = 1.1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__, allow_abbrev=False)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    soak = Soak(arguments.seed)
    ends_at = perf_counter() + arguments.minutes * 60
    while perf_counter() < ends_at and not soak.mistakes:
        soak.round()
    sys.stdout.write("".join(f"{mistake}\n" for mistake in soak.mistakes) or "nothing wrong\n")
    return int(bool(soak.mistakes))


class Soak:
    """Two feeds with the same events: one within half of what the workers hold, one without a bound."""

    def __init__(self, seed: int) -> None:
        self.mistakes: list[str] = []
        self._traffic = requests(
            NUM_WORKERS, CAPACITY_BLOCKS, random.Random(seed), num_live=100, turn_blocks=64
        )
        self._bounded = _feed(NUM_WORKERS * CAPACITY_BLOCKS // 2 * BLOCK_BYTES)
        self._oracle = _feed(1 << 40)
        self._feeder = Feeder([self._bounded, self._oracle])
        self._kept = self._held = 0
        self._resident: list[int] = []

    def round(self) -> None:
        for _ in range(REQUESTS_PER_REPORT):
            self._serve(next(self._traffic))
        self._resident.append(psutil.Process().memory_info().rss)
        first = max(self._resident[WARM_UP_REPORTS - 1 : WARM_UP_REPORTS + 1], default=0)
        if len(self._resident) > WARM_UP_REPORTS and self._resident[-1] > GROWTH_MAX * first:
            self.mistakes.append(f"memory grew from {first >> 20} to {self._resident[-1] >> 20} MiB")
        sys.stdout.write(
            f"{len(self._resident) * REQUESTS_PER_REPORT} requests, {self._resident[-1] >> 20} MiB resident, "
            f"index {self._bounded.num_bytes >> 20} of {self._bounded.budget.max_bytes >> 20} MiB, "
            f"{self._kept / max(1, self._held):.1%} of the overlap kept\n"
        )
        sys.stdout.flush()

    def _serve(self, request: Request) -> None:
        chain = chain_of(request.tokens)
        ours, truth = (
            feed.overlap(chain, (1 << NUM_WORKERS) - 1).device for feed in (self._bounded, self._oracle)
        )
        if any(depth > truth.get(slot, 0) for slot, depth in ours.items()):
            self.mistakes.append(f"invented: {ours} where there is {truth}")
        self._kept += ours.get(request.worker, 0)
        self._held += truth.get(request.worker, 0)
        self._feeder.publish(request)
        for feed in (self._bounded, self._oracle):
            feed.sweep()
        if self._bounded.num_bytes > self._bounded.budget.max_bytes:
            self.mistakes.append(f"{self._bounded.num_bytes} bytes in use")


def _feed(max_bytes: int) -> KvFeed:
    feed = KvFeed(max_bytes=max_bytes)
    for slot in range(NUM_WORKERS):
        feed.add_publisher(slot, engine="vllm", base_model=MODEL, block_tokens=BLOCK_TOKENS, can_replay=False)
    return feed


if __name__ == "__main__":
    sys.exit(main())
