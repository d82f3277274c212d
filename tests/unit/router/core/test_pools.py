"""A model's candidates as columns."""

import pytest

from indexer.blocks import HashSpace
from router.core.limits import DEFAULT_BLOCK_TOKENS
from router.core.pools import hash_space_of
from tests.support.columns import MODEL, make_pool, make_worker


def pool_of(*block_sizes, reference=16):
    """Workers of these block sizes on slots 3, 4, ..."""
    members = [(make_worker(f"w{n}", block_tokens=size), 3 + n) for n, size in enumerate(block_sizes)]
    return make_pool(members, block_tokens=reference)


def test_columns_are_parallel_and_rows_find_their_worker_again():
    pool = pool_of(16, 32)
    assert [worker.id for worker in pool.workers] == ["w0", "w1"]
    assert pool.slots == (3, 4)
    assert pool.rows == {"w0": 0, "w1": 1}
    assert pool.row_spaces == (HashSpace(MODEL, 16), HashSpace(MODEL, 32))


def test_slots_of_one_hash_space_are_asked_at_once():
    assert pool_of(16, 32, 16).spaces == {
        HashSpace(MODEL, 16): 1 << 3 | 1 << 5,
        HashSpace(MODEL, 32): 1 << 4,
    }


@pytest.mark.parametrize(
    ("block_sizes", "reference", "scales"),
    [
        ((16, 16), 16, (1.0, 1.0)),
        ((16, 128), 16, (1.0, 8.0)),
        ((32, 48), 32, (1.0, 1.5)),
        ((32, 64), 16, (2.0, 4.0)),  # the worker with blocks of 16 is not a candidate now
    ],
)
def test_scales_are_reference_blocks_in_a_block_of_each_worker(block_sizes, reference, scales):
    pool = pool_of(*block_sizes, reference=reference)
    assert pool.block_tokens == reference
    assert pool.scales == scales


def test_base_models_of_one_block_size_have_spaces_of_their_own():
    tuned = make_worker("tuned", models=())
    pool = make_pool([(make_worker("w"), 0), (tuned, 1)], block_tokens=16)
    assert pool.spaces == {HashSpace(MODEL, 16): 1, HashSpace("", 16): 2}


def test_a_worker_that_does_not_tell_its_block_size_gets_the_default():
    assert hash_space_of(make_worker("w", block_tokens=None)) == HashSpace(MODEL, DEFAULT_BLOCK_TOKENS)
    assert hash_space_of(make_worker("w", block_tokens=128)) == HashSpace(MODEL, 128)
