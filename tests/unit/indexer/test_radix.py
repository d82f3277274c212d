"""The radix index: prefixes of several workers, and what is left when they go."""

from __future__ import annotations

import random

import pytest

from indexer.blocks import TOKEN_BYTES, chain_block_hashes, pack_tokens
from indexer.limits import INDEX_SHARDS
from indexer.radix import RadixIndex

ALL = (1 << 64) - 1


def chain(*token_ids: int) -> list[int]:
    """Hashes of a prompt with one token a block."""
    return chain_block_hashes(pack_tokens(token_ids), TOKEN_BYTES, 0)


@pytest.fixture
def index() -> RadixIndex:
    return RadixIndex()


def test_leading_blocks_are_counted(index: RadixIndex) -> None:
    assert index.store(3, chain(1, 2, 3)) == 3
    assert index.match(chain(1, 2, 3), ALL) == {3: 3}
    assert index.match(chain(1, 2, 3, 4), ALL) == {3: 3}
    assert index.match(chain(1, 2), ALL) == {3: 2}
    assert index.match(chain(1, 9, 3), ALL) == {3: 1}
    assert index.match(chain(9), ALL) == {}
    assert index.match([], ALL) == {}


def test_workers_share_and_diverge(index: RadixIndex) -> None:
    index.store(0, chain(1, 2, 3))
    index.store(5, chain(1, 2, 9, 10))
    assert index.match(chain(1, 2, 3), ALL) == {0: 3, 5: 2}
    assert index.match(chain(1, 2, 9, 10), ALL) == {0: 2, 5: 4}
    assert len(index) == 5


def test_only_candidates_are_matched(index: RadixIndex) -> None:
    for slot in range(3):
        index.store(slot, chain(1))
    assert index.match(chain(1), 0b101) == {0: 1, 2: 1}
    assert index.match(chain(1), 0) == {}


def test_storing_twice_changes_nothing(index: RadixIndex) -> None:
    index.store(0, chain(1, 2))
    assert index.store(0, chain(1, 2, 3)) == 1
    assert index.num_blocks(0) == 3


@pytest.mark.parametrize(("position", "depth"), [(2, 2), (1, 1), (0, 0)])
def test_removal_cuts_the_prefix_there(index: RadixIndex, position: int, depth: int) -> None:
    hashes = chain(1, 2, 3)
    index.store(0, hashes)
    index.store(1, hashes)
    assert index.remove(0, hashes[position])
    assert index.match(hashes, 0b01).get(0, 0) == depth
    assert index.match(hashes, 0b10) == {1: 3}
    index.store(0, [hashes[position]])
    assert index.match(hashes, 0b01) == {0: 3}


def test_removing_what_is_not_held(index: RadixIndex) -> None:
    index.store(0, chain(1))
    assert not index.remove(0, chain(2)[0])
    assert not index.remove(1, chain(1)[0])
    assert index.match(chain(1), ALL) == {0: 1}


def test_nothing_is_left_after_the_last_removal(index: RadixIndex) -> None:
    for slot in range(4):
        index.store(slot, chain(1, 2, 3))
    for slot in range(4):
        assert index.truncate(slot, chain(1, 2, 3)) == 3
    assert len(index) == 0
    index.check()


def test_truncating_keeps_what_comes_before(index: RadixIndex) -> None:
    index.store(0, chain(1, 2, 3))
    assert index.truncate(0, chain(1, 2, 3, 4)[1:]) == 2
    assert index.match(chain(1, 2, 3), ALL) == {0: 1}


def test_a_dropped_slot_is_invisible_at_once_and_may_begin_anew(index: RadixIndex) -> None:
    index.store(0, chain(1, 2))
    index.store(1, chain(1))
    index.drop_slot(0)
    assert index.match(chain(1, 2), ALL) == {1: 1}
    assert index.num_blocks(0) == 0
    index.store(0, chain(9))
    assert index.match(chain(1, 2), ALL) == {1: 1}
    assert index.match(chain(9), ALL) == {0: 1}
    index.check()


def test_sweeping_gives_the_memory_back_and_frees_the_slot(index: RadixIndex) -> None:
    index.store(0, chain(*range(1_000)))
    index.store(1, chain(*range(10)))
    index.drop_slot(0)
    assert not index.is_free(0)
    slices = 0
    while not index.sweep(100):
        index.check()
        slices += 1
    assert slices > 3
    assert index.is_free(0)
    assert len(index) == 10
    index.check()


def test_a_slot_dropped_during_a_sweep_waits_for_the_next_pass(index: RadixIndex) -> None:
    index.store(0, chain(*range(100)))
    index.store(1, chain(*range(100)))
    index.drop_slot(0)
    index.sweep(1)
    index.drop_slot(1)
    while not index.is_free(0):
        index.sweep(50)
    assert not index.is_free(1)
    while not index.sweep(50):
        pass
    assert index.is_free(1)
    assert len(index) == 0


def test_a_slot_without_blocks_is_free_when_dropped(index: RadixIndex) -> None:
    assert index.is_free(0)
    index.store(0, chain(1))
    assert not index.is_free(0)
    index.remove(0, chain(1)[0])
    index.drop_slot(0)
    assert index.is_free(0)
    assert index.sweep(1)


def test_tiers_extend_a_prefix(index: RadixIndex) -> None:
    hashes = chain(1, 2, 3, 4, 5)
    index.store(0, hashes[2:4])
    index.store(1, hashes[:2])
    index.store(2, hashes[3:])
    index.store(3, hashes)
    extensions = index.extend(hashes, 0b0111, {0: 2, 2: 2})
    assert extensions == {0: 2, 1: 2}, "slot 2 has a hole at block 2, slot 3 was not asked for"
    assert index.extend(hashes, 0b1000, {3: 5}) == {}


def test_many_slots(index: RadixIndex) -> None:
    for slot in range(200):
        index.store(slot, chain(*range(slot + 1)))
    matched = index.match(chain(*range(200)), (1 << 200) - 1)
    assert matched == {slot: slot + 1 for slot in range(200)}
    index.check()


def test_hashes_of_64_bits() -> None:
    """Those of other schemes: kept apart from ours that end alike, and swept with their shard."""
    index = RadixIndex()
    hashes = [(high << 60) + low for high in range(16) for low in range(3)]
    assert index.store(0, hashes) == len(hashes) == len(index)
    index.store(1, hashes[:5])
    assert index.match(hashes, 0b11) == {0: len(hashes), 1: 5}
    index.drop_slot(0)
    while not index.sweep(1):
        index.check()
    index.check()
    assert len(index) == 5
    assert index.match(hashes, 0b11) == {1: 5}


def test_compacting_keeps_hashes_of_64_bits(index: RadixIndex) -> None:
    chain = [0xFFFF << 48 | number for number in range(300)] + [1 << 60, (1 << 60) - 1]
    index.store(0, chain)
    for _ in range(INDEX_SHARDS):
        index.compact()
    assert index.match(chain, 1) == {0: len(chain)}
    index.check()
    index.drop_slot(0)
    while not index.sweep(1):
        pass
    assert len(index) == 0


def test_a_tier_extends_each_prefix_from_where_it_ends(index: RadixIndex) -> None:
    chain = list(range(100))
    for slot, (first, last) in enumerate([(0, 100), (10, 50), (0, 5), (20, 30)]):
        index.store(slot, chain[first:last])
    depths = {1: 10, 2: 5, 3: 21}
    assert index.extend(chain, 0b1111, depths) == {0: 100, 1: 40, 3: 9}
    assert index.extend(chain, 0b0110, {}) == {2: 5}
    assert index.extend(chain, 0b1111, dict.fromkeys(range(4), 100)) == {}


@pytest.mark.parametrize("seed", range(3))
def test_long_prompts_that_diverge_anywhere(index: RadixIndex, seed: int) -> None:
    """Prompts of 1,000 blocks against a reference that compares block by block."""
    rng = random.Random(seed)
    prompts = [list(range(1_000))]
    for at in (1, 15, 16, 17, 63, 64, 65, 500, 998, 999):
        base = rng.choice(prompts)
        prompts.append(base[:at] + [rng.getrandbits(60) for _ in range(1_000 - at)])
    held = {}
    for slot, prompt in enumerate(prompts):
        held[slot] = set(prompt[: rng.choice([1, 16, 64, 999, 1_000])])
        index.store(slot, [block for block in prompt if block in held[slot]])
    for prompt in prompts:
        depths = {
            slot: next((at for at, block in enumerate(prompt) if block not in blocks), len(prompt))
            for slot, blocks in held.items()
        }
        assert index.match(prompt, ALL) == {slot: depth for slot, depth in depths.items() if depth}
    index.check()
