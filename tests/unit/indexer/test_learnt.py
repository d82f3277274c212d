"""Blocks that are believed by the engine's report alone: never more than may still be there."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from indexer.learnt import LearntBlocks


def test_what_was_reported_is_believed_until_it_is_contradicted() -> None:
    learnt = LearntBlocks()
    assert learnt.learn([1, 2, 3]) == 3
    assert learnt.learn([1, 2, 3, 4]) == 1
    assert len(learnt) == 4
    assert learnt.discard([2, 9]) == 1
    assert [number in learnt for number in range(1, 5)] == [True, False, True, True]
    learnt.clear()
    assert len(learnt) == 0


def test_a_removal_of_an_unknown_name_takes_the_end_of_the_prompt_reported_longest_ago() -> None:
    learnt = LearntBlocks()
    learnt.learn([1, 2, 3])
    learnt.learn([7, 8])
    learnt.lose_one()
    assert 3 not in learnt
    learnt.learn([1, 2])  # used again
    learnt.lose_one()
    assert 8 not in learnt
    assert 2 in learnt


def test_nothing_is_lost_where_nothing_is_believed() -> None:
    learnt = LearntBlocks()
    learnt.lose_one()
    assert len(learnt) == 0


def test_it_is_bounded_and_prompts_lose_their_ends_first() -> None:
    learnt = LearntBlocks(capacity=4)
    learnt.learn([1, 2, 3])
    assert learnt.learn([7, 8, 9]) == 3
    assert [number for number in (1, 2, 3, 7, 8, 9) if number in learnt] == [1, 7, 8, 9]


@given(
    st.lists(st.one_of(st.just("evict"), st.lists(st.integers(0, 30), max_size=6, unique=True)), max_size=60)
)
def test_there_are_never_more_claims_than_blocks_of_unknown_names_are_left(steps) -> None:
    """The engine had 31 such blocks; each eviction of one is told by a name that we do not know."""
    learnt, num_left = LearntBlocks(), 31
    for step in steps:
        if step == "evict":
            num_left = max(0, num_left - 1)
            learnt.lose_one()
        else:
            learnt.learn(step[:num_left])
            while len(learnt) > num_left:  # the engine cannot report what it has not
                learnt.lose_one()
        assert len(learnt) <= num_left
