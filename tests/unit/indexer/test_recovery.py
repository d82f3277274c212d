"""Whole recoveries through the feed: what is believed before, during and after.

Each case of a recovery that Dynamo's router is tested for has its test here, but for two that cannot arise:
a reversed range, since a replay is asked for by its beginning alone, and bounded parallelism with a back-off,
since a replay is one small request to the worker that it is about and is given up by its own silence.
"""

from __future__ import annotations

import pytest

from indexer.blocks import TOKEN_BYTES, chain_block_hashes, pack_tokens, root_seed
from indexer.feed import KvFeed, RequestReplay
from indexer.limits import REPLAY_ATTEMPTS
from indexer.trust import TrustLevel
from tests.support.vllm_events import batch, cleared, removed, stored


def prompt(*blocks: int) -> list[int]:
    """Hashes of a prompt whose blocks are four equal tokens."""
    packed = pack_tokens([token for block in blocks for token in [block] * 4])
    return chain_block_hashes(packed, 4 * TOKEN_BYTES, root_seed("m"))


def store_of(block: int, *, at: float = 1.0) -> bytes:
    """A message that stores the one-block prompt `block` under the engine's name `block`."""
    return batch(stored([block], [block] * 4), timestamp=at)


def feed_of(*slots: int, can_replay: bool = True, dp_rank: int | None = None) -> KvFeed:
    feed = KvFeed()
    for slot in slots or (0,):
        feed.add_publisher(
            slot, engine="vllm", base_model="m", block_tokens=4, can_replay=can_replay, dp_rank=dp_rank
        )
    return feed


def believed(feed: KvFeed, slot: int = 0) -> set[int]:
    """Which of the blocks 0 to 9 count as overlap now."""
    return {block for block in range(10) if feed.overlap(prompt(block), 1 << slot).device}


def test_a_live_only_source_may_start_anywhere() -> None:
    feed = feed_of(can_replay=False)
    assert feed.receive(0, 41, store_of(1)) == []
    assert believed(feed) == {1}
    assert feed.trust(0).level is TrustLevel.EXACT
    assert feed.trust(0).reason == "the history before message 41 is unknown"


def test_a_gap_is_held_back_and_filled_in_order() -> None:
    feed = feed_of()
    feed.receive(0, 0, store_of(0))
    feed.receive(0, 1, store_of(1))
    assert feed.receive(0, 4, batch(removed(3), timestamp=2.0)) == [RequestReplay(0, 2)]
    assert believed(feed) == set(), "in doubt, nothing counts"
    assert feed.trust(0).level is TrustLevel.RECOVERING
    feed.receive_replay(0, 2, store_of(2))
    feed.receive_replay(0, 3, store_of(3))
    assert feed.replay_ended(0) == []
    assert believed(feed) == {0, 1, 2}, "block 3 was stored before it was removed"
    assert feed.stats(0).num_gaps == 1


@pytest.mark.parametrize("can_replay", [True, False])
def test_stale_and_repeated_numbers_are_ignored(can_replay: bool) -> None:
    feed = feed_of(can_replay=can_replay)
    messages = [store_of(0), store_of(0), batch(removed(0))]
    for sequence, payload in enumerate(messages):
        feed.receive(0, sequence, payload)
    for sequence, payload in enumerate(messages):
        assert feed.receive(0, sequence, payload) == []
    assert believed(feed) == {0}, "two copies, one removed"


def test_a_replay_that_overtakes_the_live_stream_is_not_applied_twice() -> None:
    feed = feed_of()
    feed.receive(0, 0, store_of(0))
    feed.receive(0, 2, store_of(0))
    for sequence in (1, 2, 3):
        feed.receive_replay(0, sequence, store_of(0))
    feed.receive(0, 3, store_of(0))
    feed.replay_ended(0)
    feed.receive(0, 3, store_of(0))
    for sequence in range(4, 8):
        assert believed(feed) == {0}
        feed.receive(0, sequence, batch(removed(0)))
    assert believed(feed) == set(), "four copies were stored, four removed"


def test_a_clear_during_recovery_wins() -> None:
    feed = feed_of()
    feed.receive(0, 0, store_of(0))
    feed.receive(0, 2, batch(cleared(), stored([5], [5] * 4)))
    feed.receive_replay(0, 1, store_of(1))
    feed.replay_ended(0)
    assert believed(feed) == {5}


def test_a_publisher_replaced_during_recovery() -> None:
    feed = feed_of()
    feed.receive(0, 0, store_of(0))
    assert feed.receive(0, 5, store_of(5)) == [RequestReplay(0, 1)]
    feed.disconnected(0)
    assert feed.connected(0) == [RequestReplay(0, 0)]
    assert feed.receive_replay(0, 0, store_of(7)) == [RequestReplay(0, 0)], "not the message we had"
    feed.receive_replay(0, 0, store_of(7))
    feed.replay_ended(0)
    assert believed(feed) == {7}
    assert feed.receive_replay(0, 1, store_of(1)) == [], "an answer to the old question"
    assert feed.receive(0, 1, store_of(8)) == [], "the new numbers hold"
    assert believed(feed) == {7, 8}
    assert feed.stats(0).num_restarts == 1


@pytest.mark.parametrize("can_replay", [True, False])
@pytest.mark.parametrize("sequence", [0, 1])
def test_a_publisher_that_begins_anew_at_a_lower_number_loses_its_old_blocks_at_once(
    sequence: int, can_replay: bool
) -> None:
    """No connection was lost, no message missed: only the number and the content say that it is another."""
    feed = feed_of(can_replay=can_replay)
    for number in range(4):
        feed.receive(0, number, store_of(number))
    assert believed(feed) == {0, 1, 2, 3}
    commands = feed.receive(0, sequence, store_of(7, at=9.0))
    assert commands == ([RequestReplay(0, 0)] if can_replay else [])
    assert not believed(feed) & {0, 1, 2, 3}
    assert feed.stats(0).num_restarts == 1
    feed.replay_ended(0)
    feed.check()


def test_a_replay_from_before_the_oldest_kept_message() -> None:
    feed = feed_of()
    feed.receive(0, 0, store_of(0))
    feed.receive(0, 9, store_of(9))
    feed.receive_replay(0, 8, store_of(8))
    assert believed(feed) == set()
    feed.replay_ended(0)
    assert believed(feed) == {8, 9}, "what is older was dropped"
    assert feed.trust(0).reason == "the engine no longer has what came before message 8"


def test_a_replay_from_beyond_the_newest_message() -> None:
    """The end alone: the engine has no message of the number that we saw last, so it is another one."""
    feed = feed_of()
    feed.receive(0, 0, store_of(0))
    feed.connected(0)
    assert feed.replay_ended(0) == [RequestReplay(0, 0)]
    assert feed.replay_ended(0) == []
    assert believed(feed) == set()
    assert feed.trust(0).level is TrustLevel.EXACT


def test_when_every_attempt_fails_it_shows_and_live_events_count() -> None:
    feed = feed_of()
    feed.receive(0, 0, store_of(0))
    feed.receive(0, 2, store_of(2))
    for _ in range(REPLAY_ATTEMPTS):
        assert feed.trust(0).level is TrustLevel.RECOVERING
        feed.replay_failed(0, "silence")
    assert feed.trust(0).level is TrustLevel.EXACT
    assert feed.trust(0).reason == "the history before message 2 is unknown"
    assert believed(feed) == {2}
    assert feed.receive(0, 4, store_of(4)) == [RequestReplay(0, 3)], "the next gap tries again"


def test_many_workers_recover_each_by_itself() -> None:
    feed = feed_of(*range(20))
    for slot in range(20):
        assert feed.connected(slot) == [RequestReplay(slot, 0)]
    for slot in range(1, 20):
        feed.receive_replay(slot, 0, store_of(slot % 10))
        feed.replay_ended(slot)
    assert all(believed(feed, slot) == {slot % 10} for slot in range(1, 20))
    assert feed.trust(0).level is TrustLevel.RECOVERING, "one that does not answer holds up nobody"


def test_a_batch_that_names_another_rank_is_refused_whole() -> None:
    feed = feed_of(dp_rank=1)
    foreign = batch(stored([1], [1] * 4), cleared(), rank=0)
    assert feed.receive(0, 0, foreign) == []
    assert believed(feed) == set()
    assert feed.stats(0).ignored == {"other_rank": 1}
    feed.receive(0, 0, batch(stored([2], [2] * 4), rank=1))
    assert believed(feed) == {2}


def test_without_a_replay_socket_a_gap_forgets_and_goes_on() -> None:
    feed = feed_of(can_replay=False)
    feed.receive(0, 0, store_of(0))
    assert feed.receive(0, 2, store_of(2)) == []
    assert believed(feed) == {2}


def test_a_lost_connection_counts_as_doubt() -> None:
    feed = feed_of(can_replay=False)
    feed.receive(0, 0, store_of(0))
    feed.disconnected(0)
    assert believed(feed) == set()
    assert feed.trust(0).level is TrustLevel.RECOVERING


def test_a_payload_that_cannot_be_read_may_have_removed_anything() -> None:
    feed = feed_of()
    feed.receive(0, 0, store_of(0))
    assert feed.receive(0, 1, b"garbage") == []
    assert believed(feed) == set()
    feed.receive(0, 2, store_of(2))
    assert believed(feed) == {2}
    assert feed.stats(0).ignored == {"malformed_payload": 1}


def test_garbage_with_a_wild_number_changes_nothing() -> None:
    feed = feed_of()
    feed.receive(0, 0, store_of(0))
    for sequence in (2**64 - 1, 77, 0):
        assert feed.receive(0, sequence, b"garbage") == []
    assert believed(feed) == {0}
    assert feed.stats(0).ignored == {"malformed_payload": 3}


def test_garbage_during_a_replay_is_asked_for_and_then_given_up() -> None:
    feed = feed_of()
    feed.receive(0, 0, store_of(0))
    feed.receive(0, 2, store_of(2))
    feed.receive_replay(0, 1, b"garbage")
    assert feed.replay_ended(0) == []
    assert believed(feed) == {2}
