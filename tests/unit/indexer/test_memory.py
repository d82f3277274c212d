"""What a block of one worker costs in memory, index and engine hashes together."""

from __future__ import annotations

import gc
import random
import tracemalloc
from collections import deque

import pytest

from indexer.budget import MemoryBudget
from indexer.keys import KeyMap, key_of
from indexer.limits import INDEX_SHARDS, KEY_SHARDS
from indexer.radix import RadixIndex

BYTES_PER_BLOCK_MAX = 250


def store_blocks(key_map: KeyMap, num_blocks: int, rng: random.Random) -> list[int]:
    """Made as the feed makes them: new integers for every event, nothing shared by accident. Their keys."""
    keys = [key_of(rng.getrandbits(64)) for _ in range(num_blocks)]
    key_map.store(keys, [rng.getrandbits(60) for _ in range(num_blocks)])
    return keys


def bytes_per_block(num_workers: int, blocks_per_worker: int, *, shared: bool) -> float:
    gc.collect()
    tracemalloc.start()
    index = RadixIndex()
    budget = MemoryBudget(1 << 40, [index])
    maps = [KeyMap(index, slot, budget.tally) for slot in range(num_workers)]
    empty, _ = tracemalloc.get_traced_memory()
    for slot, key_map in enumerate(maps):
        rng = random.Random(1 if shared else slot)
        for _ in range(0, blocks_per_worker, 64):
            store_blocks(key_map, 64, rng)
    used = tracemalloc.get_traced_memory()[0] - empty
    tracemalloc.stop()
    assert used < 1.05 * budget.num_bytes, "the budget counts no less than is used"
    return used / (num_workers * blocks_per_worker)


@pytest.mark.parametrize("blocks_per_worker", [12_800, 25_600])
@pytest.mark.parametrize("shared", [False, True], ids=["blocks of their own", "the same blocks"])
def test_memory_per_block_and_worker(blocks_per_worker: int, shared: bool) -> None:
    assert bytes_per_block(4, blocks_per_worker, shared=shared) < BYTES_PER_BLOCK_MAX


def test_memory_where_blocks_come_and_go() -> None:
    """As many go as come, three times over, in the order in which they came."""
    index = RadixIndex()
    key_map = KeyMap(index, 0)
    rng = random.Random(1)
    events: deque[list[int]] = deque()
    num_blocks = 30_000  # where a dict that is never copied takes the most
    gc.collect()
    tracemalloc.start()
    for number in range(4 * num_blocks // 64):
        events.append(store_blocks(key_map, 64, rng))
        for key in events.popleft() if len(key_map) > num_blocks else ():
            key_map.remove(key)
        if number % 4 == 0:  # the feed does so with every tick
            index.compact()
            key_map.compact()
    for _ in range(INDEX_SHARDS):
        index.compact()
        key_map.compact()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    keys = sum(len(each) for each in events)
    assert KEY_SHARDS < keys <= num_blocks
    assert (used - 8 * keys) / keys < BYTES_PER_BLOCK_MAX


def test_nothing_is_left_when_everything_was_removed() -> None:
    index = RadixIndex()
    key_map = KeyMap(index, 0)
    for _ in range(3):
        key_map.store(range(1_000), range(1_000))
    for _ in range(3):
        for key in range(1_000):
            key_map.remove(key)
    assert (len(index), len(key_map)) == (0, 0)
