"""A tree's events: one for each page, of the first copy stored and of the last one gone."""

from __future__ import annotations

from indexer.events import AllBlocksCleared, BlockRemoved, BlockStored
from loadgen.wire_sglang import TreeEvents, as_array, as_short_array


def page(block_hash, parent, token_ids):
    return BlockStored([block_hash], parent, token_ids, 2)


def test_each_page_is_an_event_that_names_the_one_before():
    told = TreeEvents().of([BlockStored([11, 12], 10, [1, 2, 3, 4], 2)])
    assert told == [page(11, 10, [1, 2]), page(12, 11, [3, 4])]


def test_copies_are_told_of_once():
    tree = TreeEvents()
    stored = BlockStored([11], None, [1, 2], 2)
    assert tree.of([stored, stored]) == [page(11, None, [1, 2])]
    assert tree.of([BlockRemoved([11])]) == []
    assert tree.of([BlockRemoved([11])]) == [BlockRemoved([11])]
    assert tree.of([stored]) == [page(11, None, [1, 2])]


def test_a_page_that_is_there_does_not_hide_the_next_one():
    tree = TreeEvents()
    tree.of([BlockStored([11], None, [1, 2], 2)])
    assert tree.of([BlockStored([11, 12], None, [1, 2, 3, 4], 2)]) == [page(12, 11, [3, 4])]


def test_after_a_clear_everything_is_new():
    tree = TreeEvents()
    stored = BlockStored([11], None, [1, 2], 2)
    tree.of([stored, stored])
    assert tree.of([AllBlocksCleared(), stored]) == [AllBlocksCleared(), page(11, None, [1, 2])]


def test_the_medium_is_told_from_0_5_9_on():
    removed = BlockRemoved([2**63])
    assert as_short_array(removed) == ["BlockRemoved", [-(2**63)]]
    assert as_array(removed) == ["BlockRemoved", [-(2**63)], "GPU"]
    assert as_array(AllBlocksCleared()) == ["AllBlocksCleared"]
