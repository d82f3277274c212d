"""What events mean for the index: namespaces, tiers, groups, mismatches, and workers that come and go."""

from __future__ import annotations

import pytest

from indexer import namespaces
from indexer.blocks import TOKEN_BYTES, Layout, chain_block_hashes, pack_tokens, root_seed
from indexer.feed import KvFeed
from indexer.feed_stats import FeedStats
from indexer.trust import Trust, TrustLevel
from tests.support.vllm_events import batch, cleared, removed, stored

PROMPT = list(range(12))  # three blocks of four


def chain(token_ids: list[int] = PROMPT, *, model: str = "m", adapter: str = "", salt: str = "") -> list[int]:
    seed = root_seed(model, adapter=adapter, cache_salt=salt)
    return chain_block_hashes(pack_tokens(token_ids), 4 * TOKEN_BYTES, seed)


class Worker:
    """One publisher of a feed, spoken to in events."""

    def __init__(self, feed: KvFeed, slot: int = 0, *, model: str = "m", block_tokens: int = 4) -> None:
        self.feed = feed
        self.slot = slot
        self.sequence = -1
        feed.add_publisher(slot, engine="vllm", base_model=model, block_tokens=block_tokens, can_replay=False)

    def publish(self, *events: object) -> None:
        self.sequence += 1
        assert self.feed.receive(self.slot, self.sequence, batch(*events)) == []

    def depth(self, hashes: list[int]) -> int:
        return self.feed.overlap(hashes, 1 << self.slot).device.get(self.slot, 0)

    @property
    def stats(self) -> FeedStats:
        return self.feed.stats(self.slot)


@pytest.fixture
def feed() -> KvFeed:
    return KvFeed()


@pytest.fixture
def worker(feed: KvFeed) -> Worker:
    return Worker(feed)


def test_blocks_chain_through_their_parents(worker: Worker) -> None:
    worker.publish(stored([1, 2], PROMPT[:8]))
    worker.publish(stored([3], PROMPT[8:], parent=2))
    assert worker.depth(chain()) == 3
    assert worker.depth(chain([9, *PROMPT])) == 0
    assert (worker.stats.num_blocks_stored, worker.stats.num_blocks) == (3, 3)


def test_a_store_with_an_unknown_parent_is_dropped_and_counted(worker: Worker) -> None:
    worker.publish(stored([3], PROMPT[8:], parent=2))
    worker.publish(stored([4], PROMPT[8:], parent=3))
    assert worker.stats.num_orphans == 2
    worker.publish(stored([1, 2, 3], PROMPT))
    assert worker.depth(chain()) == 3


def test_removal(worker: Worker) -> None:
    worker.publish(stored([1, 2, 3], PROMPT), removed(2), removed(77))
    assert worker.depth(chain()) == 1
    assert worker.stats.num_blocks_removed == 1
    worker.publish(stored([2], PROMPT[4:8], parent=1))
    assert worker.depth(chain()) == 3


def test_clear_is_of_one_worker(feed: KvFeed, worker: Worker) -> None:
    other = Worker(feed, 1)
    for each in (worker, other):
        each.publish(stored([1, 2, 3], PROMPT))
    worker.publish(cleared(), stored([1], PROMPT[:4]))
    assert (worker.depth(chain()), other.depth(chain())) == (1, 3)
    assert worker.stats.num_clears == 1


def test_adapters_and_salts_never_meet(worker: Worker) -> None:
    worker.publish(
        stored([1], PROMPT[:4]),
        stored([2], PROMPT[:4], lora_name="alpha", extra_keys=[["alpha"]]),
        stored([3, 4], PROMPT[:8], extra_keys=[["tenant"], None]),
        stored([5], PROMPT[8:], parent=4, extra_keys=[None]),
    )
    assert worker.depth(chain()) == 1
    assert worker.depth(chain(adapter="alpha")) == 1
    assert worker.depth(chain(adapter="beta")) == 0
    assert worker.depth(chain(salt="tenant")) == 3
    assert worker.depth(chain(salt="other")) == 0


def test_models_never_meet(feed: KvFeed, worker: Worker) -> None:
    other = Worker(feed, 1, model="n")
    for each in (worker, other):
        each.publish(stored([1, 2, 3], PROMPT))
    assert (worker.depth(chain()), other.depth(chain())) == (3, 0)
    assert other.depth(chain(model="n")) == 3


def test_blocks_with_media_match_no_text(worker: Worker) -> None:
    worker.publish(stored([1, 2], PROMPT[:8], extra_keys=[None, [["image", 0]]]))
    assert worker.depth(chain()) == 1


def test_namespaces_are_bounded(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "NAMESPACES", 2)
    for number in range(5):
        worker.publish(stored([number], PROMPT[:4], extra_keys=[[f"salt {number}"]]))
    assert all(worker.depth(chain(salt=f"salt {number}")) == 1 for number in range(5))


def test_tiers_are_credited_as_extension(feed: KvFeed, worker: Worker) -> None:
    worker.publish(
        stored([1, 2, 3], PROMPT),
        stored([2, 3], [], medium="CPU"),
        stored([3], [], medium="DISK"),
        removed(3),
    )
    scores = feed.overlap(chain(), 1)
    assert (scores.device, scores.host, scores.disk) == ({0: 2}, {0: 1}, {})
    worker.publish(removed(2), removed(3, medium="CPU"))
    scores = feed.overlap(chain(), 1)
    assert (scores.device, scores.host, scores.disk) == ({0: 1}, {0: 1}, {0: 1})
    worker.publish(removed(1))
    scores = feed.overlap(chain(), 1)
    assert (scores.device, scores.host, scores.disk) == ({}, {}, {}), "the chain begins nowhere"


def test_host_blocks_alone_make_a_prefix(feed: KvFeed, worker: Worker) -> None:
    worker.publish(stored([1, 2, 3], PROMPT, medium="CPU"))
    scores = feed.overlap(chain(), 1)
    assert (scores.device, scores.host) == ({}, {0: 3})


def test_a_device_block_may_have_its_parent_on_another_tier(worker: Worker) -> None:
    worker.publish(stored([1, 2], PROMPT[:8]), stored([2], [], medium="CPU"), removed(2))
    worker.publish(stored([3], PROMPT[8:], parent=2))
    assert worker.stats.num_orphans == 0


def test_offloaded_blocks_that_nobody_knows(worker: Worker) -> None:
    worker.publish(stored([1, 2], [], medium="CPU"))
    assert worker.stats.num_orphans == 2


def test_clearing_empties_every_tier(feed: KvFeed, worker: Worker) -> None:
    worker.publish(stored([1], PROMPT[:4]), stored([1], [], medium="CPU"), cleared())
    scores = feed.overlap(chain(), 1)
    assert (scores.device, scores.host) == ({}, {})


def test_the_layout_is_learnt_from_the_device(feed: KvFeed, worker: Worker) -> None:
    assert feed.layout(0) is None
    worker.publish(stored([9], [0] * 16, block_tokens=16, medium="DISK"))
    assert feed.layout(0) is None
    worker.publish(stored([1], PROMPT[:4]))
    assert feed.layout(0) == Layout(4)
    assert feed.layout(5) is None


def test_another_block_size_than_expected_degrades_until_it_is_expected(feed: KvFeed) -> None:
    worker = Worker(feed, block_tokens=16)
    worker.publish(stored([1, 2, 3], PROMPT))
    assert worker.depth(chain()) == 0
    assert feed.trust(0) == Trust(
        TrustLevel.DEGRADED, "worker stores blocks of 4 tokens, prompts are cut into blocks of 16 tokens"
    )
    feed.expect(0, Layout(4))
    assert feed.trust(0).level is TrustLevel.EXACT
    assert worker.depth(chain()) == 3, "nothing was lost meanwhile"


def test_without_an_expectation_the_worker_says_it(feed: KvFeed) -> None:
    feed.add_publisher(3, engine="vllm", base_model="m", block_tokens=None, can_replay=False)
    feed.receive(3, 0, batch(stored([1, 2, 3], PROMPT)))
    assert feed.layout(3) == Layout(4)
    assert feed.overlap(chain(), 0b1000).device == {3: 3}


def test_two_block_sizes_on_the_device_degrade_the_worker(feed: KvFeed, worker: Worker) -> None:
    worker.publish(stored([1], PROMPT[:4]))
    worker.publish(stored([2], [0] * 16, block_tokens=16))
    assert worker.depth(chain()) == 0
    assert feed.trust(0) == Trust(TrustLevel.DEGRADED, "worker stores blocks of 4 tokens and of 16 tokens")
    assert worker.stats.ignored == {"block_size": 1}
    worker.sequence = -1  # another engine process
    worker.publish(stored([1, 2], PROMPT[:8]))
    assert worker.depth(chain()) == 2


def test_another_tier_may_cut_its_blocks_as_it_likes(feed: KvFeed, worker: Worker) -> None:
    worker.publish(stored([1], PROMPT[:4]), stored([2], [0] * 16, block_tokens=16, medium="DISK"))
    assert worker.depth(chain()) == 1
    assert feed.trust(0).level is TrustLevel.EXACT


@pytest.mark.parametrize("token_id", [-1, 2**32])
def test_token_ids_that_are_none(worker: Worker, token_id: int) -> None:
    worker.publish(stored([1], [1, 2, 3, token_id]))
    assert worker.stats.ignored == {"token_ids": 1}


def test_the_engine_reported_less(feed: KvFeed, worker: Worker) -> None:
    worker.publish(stored([1, 2, 3], PROMPT), stored([1], [], medium="CPU"))
    assert feed.truncate(0, chain()[1:]) == 2
    assert worker.depth(chain()) == 1
    assert worker.stats.num_overreports == 1
    assert feed.truncate(0, chain()[1:]) == 0
    assert worker.stats.num_overreports == 1
    assert feed.truncate(7, chain()) == 0


def test_a_worker_that_leaves_is_gone_at_once_and_swept_later(feed: KvFeed, worker: Worker) -> None:
    other = Worker(feed, 1)
    for each in (worker, other):
        each.publish(stored([1, 2, 3], PROMPT))
    feed.remove_publisher(0)
    assert feed.overlap(chain(), 0b11).device == {1: 3}
    assert feed.trust(0).level is TrustLevel.PREDICTED
    assert not feed.is_free(0)
    while not feed.sweep():
        feed.check()
    assert feed.is_free(0)
    back = Worker(feed, 0)
    assert back.depth(chain()) == 0
    feed.remove_publisher(5)


def test_workers_without_events(feed: KvFeed) -> None:
    assert feed.trust(3) == Trust(TrustLevel.PREDICTED, "publishes no events")
    assert feed.stats(3) == FeedStats()
    assert feed.is_free(3)


def test_what_is_no_message_is_counted(feed: KvFeed, worker: Worker) -> None:
    feed.malformed(0, "frame_count")
    feed.malformed(0, "frame_count")
    worker.publish({"type": "Unheard"})
    assert worker.stats.ignored == {"frame_count": 2, "unknown_event": 1}


def test_counters(worker: Worker) -> None:
    worker.publish(stored([1, 2], PROMPT[:8]), removed(1))
    worker.publish(cleared())
    stats = worker.stats
    assert (stats.num_messages, stats.num_events, stats.last_sequence) == (2, 3, 1)
    assert (stats.num_blocks_stored, stats.num_blocks_removed, stats.num_clears) == (2, 1, 1)


def test_an_engine_without_an_adapter(feed: KvFeed) -> None:
    with pytest.raises(KeyError):
        feed.add_publisher(0, engine="unheard", base_model="m", block_tokens=4, can_replay=False)
