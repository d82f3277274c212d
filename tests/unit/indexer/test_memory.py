"""What a block of one worker costs in memory, index and engine hashes together."""

from __future__ import annotations

import gc
import random
import tracemalloc

import pytest

from indexer.keys import KeyMap, key_of
from indexer.radix import RadixIndex

BYTES_PER_BLOCK_MAX = 250


def bytes_per_block(num_workers: int, blocks_per_worker: int, *, shared: bool) -> float:
    """Made as the feed makes them: new integers for every event, nothing shared by accident."""
    index = RadixIndex()
    maps = [KeyMap(index, slot) for slot in range(num_workers)]
    gc.collect()
    tracemalloc.start()
    for slot, key_map in enumerate(maps):
        rng = random.Random(1 if shared else slot)
        for _ in range(0, blocks_per_worker, 64):
            keys = [key_of(rng.getrandbits(64)) for _ in range(64)]
            key_map.store(keys, [rng.getrandbits(60) for _ in range(64)])
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used / (num_workers * blocks_per_worker)


@pytest.mark.parametrize("blocks_per_worker", [12_800, 25_600])
@pytest.mark.parametrize("shared", [False, True], ids=["blocks of their own", "the same blocks"])
def test_memory_per_block_and_worker(blocks_per_worker: int, shared: bool) -> None:
    assert bytes_per_block(4, blocks_per_worker, shared=shared) < BYTES_PER_BLOCK_MAX


def test_nothing_is_left_when_everything_was_removed() -> None:
    index = RadixIndex()
    key_map = KeyMap(index, 0)
    for _ in range(3):
        key_map.store(range(1_000), range(1_000))
    for _ in range(3):
        for key in range(1_000):
            key_map.remove(key)
    assert (len(index), len(key_map)) == (0, 0)
