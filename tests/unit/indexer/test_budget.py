from __future__ import annotations

import gc
import random
import tracemalloc
from itertools import islice

import pytest

from indexer.budget import BLOCK_BYTES
from indexer.feed import KvFeed
from tests.support.event_traffic import BLOCK_TOKENS, MODEL, Feeder, chain_of, requests
from tests.support.vllm_events import batch, stored

NUM_WORKERS = 3
CAPACITY = 2_000


def feed_of(max_blocks: int, num_workers: int = NUM_WORKERS) -> KvFeed:
    feed = KvFeed(max_bytes=max_blocks * BLOCK_BYTES)
    for slot in range(num_workers):
        feed.add_publisher(slot, engine="vllm", base_model=MODEL, block_tokens=BLOCK_TOKENS, can_replay=False)
    return feed


@pytest.mark.parametrize("share", [0.5, 0.25])
def test_twice_the_budget_and_more_stays_within_it_and_invents_nothing(share: float) -> None:
    """Against a feed that holds everything: never deeper, and what is kept is what is asked for."""
    feed = feed_of(int(NUM_WORKERS * CAPACITY * share))
    oracle = KvFeed(max_bytes=1 << 40)
    for slot in range(NUM_WORKERS):
        oracle.add_publisher(
            slot, engine="vllm", base_model=MODEL, block_tokens=BLOCK_TOKENS, can_replay=False
        )
    feeder = Feeder([feed, oracle])
    kept = held = 0
    for request in islice(requests(NUM_WORKERS, CAPACITY, random.Random(1), num_live=16), 3_000):
        chain = chain_of(request.tokens)
        ours, truth = (each.overlap(chain, (1 << NUM_WORKERS) - 1).device for each in (feed, oracle))
        assert all(depth <= truth.get(slot, 0) for slot, depth in ours.items())
        kept += ours.get(request.worker, 0)
        held += truth.get(request.worker, 0)
        feeder.publish(request)
        assert feed.budget.num_bytes <= feed.budget.max_bytes
    feed.check()
    assert sum(feed.stats(slot).num_blocks_dropped for slot in range(NUM_WORKERS)) > 1_000
    assert kept > share * held, "what is kept is worth more than its share"


def test_memory_in_use_stays_flat_and_below_the_budget() -> None:
    capacity, rng = 20_000, random.Random(1)
    traffic = list(islice(requests(2, capacity, rng, num_live=16, turn_blocks=64), 2_400))
    gc.collect()
    tracemalloc.start()
    feed = feed_of(capacity, num_workers=2)
    empty, _ = tracemalloc.get_traced_memory()
    feeder = Feeder([feed])
    used = []
    for request in traffic:
        feeder.publish(request)
        feed.sweep()
        used.append(tracemalloc.get_traced_memory()[0] - empty)
    tracemalloc.stop()
    assert max(used[1_600:]) < 1.1 * max(used[800:1_600])
    assert max(used) < feed.budget.max_bytes


def test_the_largest_share_pays() -> None:
    feed = feed_of(300)
    for sequence in range(4):
        feed.receive(0, sequence, store_of(range(sequence * 20, sequence * 20 + 20)))
    for sequence in range(100):
        first = 10_000 + sequence * 20
        feed.receive(1, sequence, store_of(range(first, first + 20)))
    assert feed.index.num_blocks(0) == 80
    assert feed.stats(0).num_blocks_dropped == 0
    assert feed.stats(1).num_blocks_dropped > 1_000


def test_what_waits_to_be_swept_goes_first() -> None:
    feed = feed_of(300)
    feed.receive(0, 0, store_of(range(200)))
    feed.remove_publisher(0)
    feed.receive(1, 0, store_of(range(1_000, 1_200)))
    assert feed.index.num_blocks(1) == 200
    assert feed.stats(1).num_blocks_dropped == 0
    feed.check()


def test_the_beginning_of_one_long_prompt_is_kept() -> None:
    feed = feed_of(100)
    blocks = range(200)
    feed.receive(0, 0, store_of(blocks))
    depth = feed.overlap(chain_of(tokens_of(blocks)), 1).device[0]
    assert 0 < depth == feed.index.num_blocks(0) < 100


def test_a_dropped_block_that_the_engine_removes_is_no_mistake() -> None:
    feed = feed_of(100)
    feed.receive(0, 0, store_of(range(200)))
    held = feed.index.num_blocks(0)
    feed.receive(0, 1, batch({"type": "BlockRemoved", "block_hashes": [199], "medium": "GPU"}))
    assert feed.index.num_blocks(0) == held
    feed.check()


def test_a_budget_for_nothing_holds_nothing() -> None:
    feed = KvFeed(max_bytes=1)
    feed.add_publisher(0, engine="vllm", base_model=MODEL, block_tokens=BLOCK_TOKENS, can_replay=False)
    feed.receive(0, 0, store_of(range(5)))
    assert feed.index.num_blocks(0) == 0


def tokens_of(blocks: range) -> list[int]:
    return [token for block in blocks for token in [block] * BLOCK_TOKENS]


def store_of(blocks: range) -> bytes:
    return batch(stored(blocks, tokens_of(blocks), block_tokens=BLOCK_TOKENS))
