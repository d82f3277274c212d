"""What one worker holds: names of blocks, copies, and names that change their meaning."""

from __future__ import annotations

import pytest

from indexer.keys import KeyMap, key_of
from indexer.radix import RadixIndex


@pytest.fixture
def index() -> RadixIndex:
    return RadixIndex()


@pytest.fixture
def keys(index: RadixIndex) -> KeyMap:
    return KeyMap(index, 0)


def test_names_of_all_kinds_become_keys() -> None:
    digest = bytes(range(32))
    assert key_of(digest) == key_of(int.from_bytes(digest[-8:], "big")), "engines shorten digests so"
    assert key_of(-1) == key_of(2**64 - 1), "signed or unsigned, bit for bit"
    assert key_of(b"") == 0
    assert key_of(b"\x07") == key_of(7)
    assert len({key_of(value) for value in (1, 2, -2, 2**59, b"\x03" * 8)}) == 5


def test_copies_are_removed_one_by_one(keys: KeyMap, index: RadixIndex) -> None:
    assert keys.store([1, 2], [11, 12]) == 2
    assert keys.store([2], [12]) == 0
    assert keys.store([2], [12]) == 0
    assert not keys.remove(2)
    assert not keys.remove(2)
    assert index.holds(0, 12)
    assert keys.remove(2)
    assert not index.holds(0, 12)
    assert not keys.remove(2)
    assert index.match([11, 12], 1) == {0: 1}
    keys.check()


def test_a_claim_that_was_dropped_is_counted_anew(keys: KeyMap, index: RadixIndex) -> None:
    """The engine reported less than we claimed: the copies that we had counted were none."""
    keys.store([1], [11])
    keys.store([1], [11])
    index.truncate(0, [11])
    keys.store([1], [11])
    assert index.holds(0, 11)
    assert keys.remove(1), "one copy was stored since"
    keys.check()


def test_a_name_that_means_another_block_now(keys: KeyMap, index: RadixIndex) -> None:
    keys.store([1], [11])
    keys.store([1], [11])
    assert keys.store([1], [12]) == 0, "one gained, one lost"
    assert keys.block_hash(1) == 12
    assert not index.holds(0, 11), "no removal could name it any more"
    assert keys.remove(1)
    assert len(keys) == 0
    keys.check()


def test_one_name_twice_in_one_event(keys: KeyMap, index: RadixIndex) -> None:
    keys.store([1, 1], [11, 12])
    assert not index.holds(0, 11)
    assert index.holds(0, 12)
    keys.check()


def test_two_names_for_one_block(keys: KeyMap, index: RadixIndex) -> None:
    """An adapter loaded again from another path: whichever goes first takes the claim along."""
    keys.store([1], [11])
    keys.store([2], [11])
    assert keys.remove(1)
    assert not index.holds(0, 11)
    assert not keys.remove(2)
    assert len(keys) == 0
    keys.check()


def test_workers_with_names_of_their_own_leave_nothing_behind(index: RadixIndex) -> None:
    """Random hash seeds: the same blocks under other names on every worker."""
    maps = [KeyMap(index, slot) for slot in range(3)]
    for slot, key_map in enumerate(maps):
        key_map.store([slot * 10 + 1, slot * 10 + 2], [11, 12])
    assert index.match([11, 12], 0b111) == {0: 2, 1: 2, 2: 2}
    for slot, key_map in enumerate(maps):
        assert key_map.remove(slot * 10 + 1)
        assert key_map.remove(slot * 10 + 2)
        assert len(key_map) == 0
    assert len(index) == 0


def test_clearing_hands_over_what_was_held(keys: KeyMap, index: RadixIndex) -> None:
    keys.store([1, 2**59], [11, 12])
    assert sum(len(garbage.names) for garbage in keys.clear()) == 2
    assert len(keys) == 0
    assert index.match([11], 1) == {}
    keys.store([1], [11])
    assert index.match([11], 1) == {0: 1}
    assert keys.remove(1)


def test_many_are_removed_as_one_by_one() -> None:
    maps = [KeyMap(RadixIndex(), 0) for _ in range(2)]
    for each in maps:
        each.store([1, 2, 3, 4], [11, 12, 13, 14])
        each.store([2, 3], [12, 13], 1)
    one_by_one, together = maps
    removals = [[2, 4, 99], [2, 3, 3], [], [1]]
    for keys in removals:
        assert together.remove_all(keys) == sum(map(one_by_one.remove, keys))
        assert len(together) == len(one_by_one)
        together.check()
    assert len(together) == 0
