"""Order of eviction, copies, reference counts, the reserved block."""

from __future__ import annotations

from indexer.events import AllBlocksCleared, BlockRemoved, BlockStored
from loadgen.block_pool import BlockPool


def stored(*hashes):
    return BlockStored(list(hashes), None, [], 4)


def fill(pool, *hashes):
    """Stores these and lets go of them again; returns their block ids."""
    block_ids = pool.allocate(len(hashes))
    pool.register(block_ids, stored(*hashes))
    pool.release(block_ids)
    return block_ids


def removed(events):
    return [each for event in events if isinstance(event, BlockRemoved) for each in event.block_hashes]


def test_one_block_is_reserved():
    assert BlockPool(8).num_free == BlockPool(8).num_usable == 7


def test_the_tail_of_the_oldest_goes_first():
    pool = BlockPool(7)
    fill(pool, 1, 2, 3)
    fill(pool, 4, 5, 6)
    pool.take_events()
    pool.allocate(4)
    assert removed(pool.take_events()) == [3, 2, 1, 6]
    pool.check()


def test_use_keeps_a_block():
    pool = BlockPool(7)
    fill(pool, 1, 2, 3)
    fill(pool, 4, 5, 6)
    held = pool.find_prefix([1, 2, 9])
    assert pool.num_unused(held) == 2
    pool.reuse(held)
    pool.take_events()
    pool.allocate(pool.num_free)
    assert removed(pool.take_events()) == [3, 6, 5, 4]
    assert pool.find_prefix([1, 2, 3]) == held
    pool.check()


def test_two_users_release_twice():
    pool = BlockPool(4)
    block_ids = fill(pool, 1)
    pool.reuse(block_ids)
    pool.reuse(block_ids)
    assert pool.num_unused(block_ids) == 0
    pool.release(block_ids)
    assert pool.num_free == 2
    pool.release(block_ids)
    assert pool.num_free == 3


def test_each_copy_is_removed_by_itself_and_the_rest_stay_findable():
    pool = BlockPool(4)
    for _ in range(3):
        block_ids = pool.allocate(1)
        pool.register(block_ids, stored(7))
        pool.release(block_ids)
    # The free list hands out blocks that were never used first, so these are three copies.
    pool.take_events()
    assert pool.num_cached == 1
    taken = pool.allocate(2)
    assert removed(pool.take_events()) == [7, 7]
    assert len(pool.find_prefix([7])) == 1
    pool.check()
    pool.release(taken)
    pool.allocate(3)
    assert removed(pool.take_events()) == [7]
    assert pool.find_prefix([7]) == []
    pool.check()


def test_clear_is_refused_while_a_block_is_in_use():
    pool = BlockPool(4)
    block_ids = pool.allocate(1)
    pool.register(block_ids, stored(1))
    pool.take_events()
    assert not pool.clear()
    assert pool.take_events() == []
    pool.release(block_ids)
    assert pool.clear()
    assert isinstance(pool.take_events()[0], AllBlocksCleared)
    assert pool.find_prefix([1]) == []
    pool.check()
