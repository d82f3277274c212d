"""A reset that is known before its event, and the beginnings of prompts that are kept for finding causes."""

from __future__ import annotations

from indexer.events import AllBlocksCleared, BlockRemoved, BlockStored
from indexer.limits import CLEAR_ECHO_MESSAGES, STORED_ROOTS_KEPT
from indexer.radix import RadixIndex
from indexer.standing import Standing

OLD, NEW, CLEARED = BlockStored([1], None, [1] * 4, 4), BlockStored([2], None, [2] * 4, 4), AllBlocksCleared()


def standing_of() -> Standing:
    return Standing(RadixIndex(), 0)


def test_without_a_reset_all_events_count() -> None:
    assert standing_of().since_reset([OLD, CLEARED, NEW], is_replay=False) == [OLD, CLEARED, NEW]


def test_after_a_reset_what_comes_before_its_event_is_of_the_time_before() -> None:
    standing = standing_of()
    standing.was_reset()
    assert standing.since_reset([OLD], is_replay=False) == ()
    for _ in range(CLEAR_ECHO_MESSAGES + 5):
        assert standing.since_reset([OLD], is_replay=True) == (), "a replay may be long"
    assert standing.since_reset([OLD, CLEARED, NEW], is_replay=False) == [CLEARED, NEW]
    assert standing.since_reset([OLD], is_replay=False) == [OLD]


def test_an_engine_that_never_announces_its_reset_is_believed_again_after_some_messages() -> None:
    standing = standing_of()
    standing.was_reset()
    for _ in range(CLEAR_ECHO_MESSAGES):
        assert standing.since_reset([NEW], is_replay=False) == ()
    assert standing.since_reset([NEW], is_replay=False) == [NEW]


def test_a_new_history_waits_for_no_event_of_the_old_one() -> None:
    standing = standing_of()
    standing.learnt.learn([1])
    standing.was_reset()
    standing.begin_anew()
    assert standing.since_reset([BlockRemoved([1])], is_replay=False) == [BlockRemoved([1])]
    assert not standing.learnt


def test_roots_are_kept_only_while_somebody_wants_them_and_only_the_last() -> None:
    standing = standing_of()
    standing.stored(OLD, [1])
    assert standing.roots == ()
    standing.sample_roots(True)
    for token in range(STORED_ROOTS_KEPT + 1):
        standing.stored(
            BlockStored([token, 9], None, [token] * 8, 4, adapter="a", cache_salt="s"), [token, 9]
        )
    standing.stored(BlockStored([5], 4, [5] * 4, 4), [5])
    assert len(standing.roots) == STORED_ROOTS_KEPT
    first = standing.roots[0]
    assert (first.adapter, first.cache_salt) == ("a", "s")
    assert first.token_ids == (1,) * 5, "a block and one token"
    standing.sample_roots(False)
    assert standing.roots == ()


def test_what_an_event_tells_of_need_not_be_learnt_any_more() -> None:
    standing = standing_of()
    standing.learnt.learn([1, 2])
    standing.stored(OLD, [1])
    assert len(standing.learnt) == 1


def test_a_report_teaches_what_no_event_told_of_and_continues_what_events_tell() -> None:
    index = RadixIndex()
    index.store(0, [1, 4])
    index.store(1, [2, 3])  # another worker's
    standing = Standing(index, 0)
    assert standing.learn([1, 2, 3]) == 2
    assert standing.learn([1, 2, 3]) == 0
    assert standing.num_learnt == 2
    assert standing.depth([1, 2, 3, 4, 5], 1) == 4
    assert standing.depth([9], 0) == 0
