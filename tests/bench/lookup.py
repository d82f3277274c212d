"""What a lookup in the exact index costs, and how long a worker's leaving holds the loop up.

CPU time of this process: other processes take nothing of it.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from statistics import median
from time import process_time

from indexer.feed import KvFeed
from indexer.radix import RadixIndex
from tests.support.fleets import Engine, chain_of, make_core, publishing

NUM_WORKERS = 128
NUM_BLOCKS = 512
LOOKUPS_PER_ROUND = 200
LEAVING_BLOCKS = 1_000_000

HELD: dict[str, Callable[[int], int]] = {
    "half hold half": lambda number: NUM_BLOCKS if number == 0 else NUM_BLOCKS // 2 * (number % 2),
    "all hold all": lambda number: NUM_BLOCKS,
    "each holds another length": lambda number: NUM_BLOCKS // NUM_WORKERS * (number + 1),
    "nobody holds any": lambda number: 0,
}
"""Leading blocks of the prompt that a worker holds, by case."""

WITH_BAR = frozenset(HELD)


def feed_of(tokens: list[int], held: Callable[[int], int]) -> KvFeed:
    core = make_core([publishing(f"w{number}", num_blocks=100_000) for number in range(NUM_WORKERS)])
    for number in range(NUM_WORKERS):
        engine = Engine(core, f"w{number}")
        if num_blocks := held(number):
            engine.store(tokens[: num_blocks * 16])
    return core.feed


def samples(num_rounds: int) -> dict[str, list[float]]:
    """Microseconds of a lookup, by case, one figure a round."""
    rng = random.Random(1)
    tokens = [rng.randrange(150_000) for _ in range(NUM_BLOCKS * 16)]
    chain, everyone = chain_of(tokens), (1 << NUM_WORKERS) - 1
    feeds = {case: feed_of(tokens, held) for case, held in HELD.items()}
    taken: dict[str, list[float]] = {case: [] for case in HELD}
    for _ in range(num_rounds):
        for case, feed in feeds.items():
            start = process_time()
            for _ in range(LOOKUPS_PER_ROUND):
                feed.overlap(chain, everyone)
            taken[case].append((process_time() - start) / LOOKUPS_PER_ROUND * 1e6)
    return taken


def longest_pause_ms() -> float:
    """Of dropping a worker and of each slice of the sweep after it."""
    rng, index = random.Random(1), RadixIndex()
    for _ in range(LEAVING_BLOCKS // 64):
        index.store(0, [rng.getrandbits(60) for _ in range(64)])
    start = process_time()
    index.drop_slot(0)
    pauses = [process_time() - start]
    is_done = False
    while not is_done:
        start = process_time()
        is_done = index.sweep(10_000)
        pauses.append(process_time() - start)
    return max(pauses) * 1e3


if __name__ == "__main__":
    for case, micros in samples(5).items():
        sys.stdout.write(f"{case}: {median(micros):.1f} µs\n")
    sys.stdout.write(f"longest pause: {longest_pause_ms():.1f} ms\n")
