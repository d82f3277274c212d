"""Reports, resets and findings through the feed: what they do to overlap and trust."""

from __future__ import annotations

from indexer.blocks import TOKEN_BYTES, chain_block_hashes, pack_tokens, root_seed
from indexer.feed import KvFeed
from indexer.trust import Trust, TrustLevel
from tests.support.vllm_events import batch, cleared, removed, stored

TOKENS = list(range(24))
CHAIN = chain_block_hashes(pack_tokens(TOKENS), 4 * TOKEN_BYTES, root_seed("m"))


def feed_of(*, can_replay: bool = False) -> KvFeed:
    feed = KvFeed()
    for slot in (0, 1):
        feed.add_publisher(slot, engine="vllm", base_model="m", block_tokens=4, can_replay=can_replay)
        feed.connected(slot)
    return feed


def depth(feed: KvFeed) -> int:
    return feed.overlap(CHAIN, 0b11).device.get(0, 0)


def test_reported_blocks_count_until_a_removal_that_can_only_be_of_them() -> None:
    feed = feed_of()
    assert feed.learn(0, CHAIN[:3]) == 3
    assert depth(feed) == 3
    assert feed.overlap(CHAIN, 0b10).device == {}
    feed.receive(0, 7, batch(stored([50], [9] * 4)))
    assert depth(feed) == 0, "the first message begins the history, and nothing before it is known"
    feed.learn(0, CHAIN[:3])
    feed.receive(0, 8, batch(removed(50)))
    assert depth(feed) == 3, "a block that events had told of"
    feed.receive(0, 9, batch(removed(77)))
    assert depth(feed) == 2, "a block of unknown name: the prompt's end goes first"
    feed.receive(0, 10, batch(cleared()))
    assert depth(feed) == 0
    feed.check()


def test_what_events_tell_of_continues_what_was_reported() -> None:
    feed = feed_of()
    feed.receive(0, 5, batch(stored([1, 2], TOKENS[:8])))
    feed.learn(0, CHAIN[:4])
    assert feed.stats(0).num_learnt_blocks == 2
    assert depth(feed) == 4
    feed.receive(0, 6, batch(stored([3, 4, 5], TOKENS[8:20], parent=2)))
    assert depth(feed) == 5
    assert feed.stats(0).num_learnt_blocks == 0, "they are known by their names now"
    assert feed.truncate(0, CHAIN[2:]) == 3
    assert depth(feed) == 2


def test_nothing_is_learnt_of_a_worker_whose_past_is_known_or_that_is_in_doubt() -> None:
    feed = feed_of(can_replay=True)
    assert feed.learn(0, CHAIN) == 0, "a replay runs"
    feed.replay_ended(0)
    feed.receive(0, 0, batch(stored([1], TOKENS[:4])))
    assert feed.learn(0, CHAIN) == 0, "message 0 was seen"
    assert feed.learn(9, CHAIN) == 0, "no such publisher"


def test_a_reset_empties_at_once_and_its_own_event_keeps_what_came_since() -> None:
    feed = feed_of(can_replay=True)
    feed.replay_ended(0)
    feed.receive(0, 0, batch(stored([1, 2], TOKENS[:8])))
    feed.reset(0)
    assert (depth(feed), feed.stats(0).num_clears) == (0, 1)
    feed.receive(0, 1, batch(stored([3], TOKENS[8:12], parent=2)))
    assert depth(feed) == 0, "on its way when the engine was reset"
    feed.receive(0, 2, batch(cleared(), stored([1], TOKENS[:4])))
    assert depth(feed) == 1
    feed.receive(0, 3, batch(stored([2], TOKENS[4:8], parent=1)))
    assert depth(feed) == 2
    assert feed.trust(0) == Trust(TrustLevel.EXACT)
    feed.check()


def test_a_replay_after_a_reset_brings_nothing_back() -> None:
    feed = feed_of(can_replay=True)
    feed.replay_ended(0)
    feed.receive(0, 0, batch(stored([1], TOKENS[:4])))
    feed.receive(0, 2, batch(removed(9)))
    feed.reset(0)
    feed.receive_replay(0, 1, batch(stored([1], TOKENS[:4])))
    feed.receive_replay(0, 2, batch(removed(9)))
    feed.replay_ended(0)
    assert (depth(feed), feed.trust(0).level) == (0, TrustLevel.EXACT)


def test_a_disbelieved_worker_counts_nothing_and_is_heard_all_the_same() -> None:
    feed = feed_of()
    feed.receive(0, 0, batch(stored([1], TOKENS[:4])))
    feed.disbelieve(0, "other blocks")
    assert (depth(feed), feed.trust(0)) == (0, Trust(TrustLevel.DEGRADED, "other blocks"))
    feed.receive(0, 1, batch(stored([2], TOKENS[4:8], parent=1)))
    feed.disbelieve(0, "")
    assert depth(feed) == 2
    feed.disbelieve(9, "nobody")


def test_a_block_is_held_on_any_tier_and_in_any_group() -> None:
    feed = feed_of()
    feed.receive(0, 0, batch(stored([1, 2], TOKENS[:8]), stored([2], [], medium="CPU"), removed(2)))
    window = {"group_idx": 1, "kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 8}
    feed.receive(0, 1, batch(stored([1, 2, 3], TOKENS[:12], **window)))
    feed.disbelieve(0, "whatever")
    assert [feed.holds(0, each) for each in CHAIN[:4]] == [True, True, True, False]
    assert not feed.holds(1, CHAIN[0])
    assert not feed.holds(9, CHAIN[0])


def test_roots_are_sampled_on_demand() -> None:
    feed = feed_of()
    feed.receive(0, 0, batch(stored([1], TOKENS[:4])))
    feed.sample_roots(0, True)
    feed.receive(0, 1, batch(stored([2, 3], TOKENS[4:12], lora_name="a1")))
    feed.receive(0, 2, batch(stored([4], TOKENS[12:16], parent=3)))
    (root,) = feed.roots(0)
    assert (root.adapter, root.token_ids) == ("a1", tuple(TOKENS[4:9]))
    feed.sample_roots(0, False)
    assert feed.roots(0) == ()
    assert feed.roots(9) == ()


def test_what_is_missing_is_said_of_each_worker() -> None:
    feed = feed_of()
    assert feed.is_sound(0)
    assert "no replay socket" in feed.missing_history(0)
    feed.disconnected(0)
    assert not feed.is_sound(0)
    assert (feed.is_sound(9), feed.missing_history(9)) == (False, "")
