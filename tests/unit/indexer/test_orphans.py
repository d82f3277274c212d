"""Stored events that wait for their parent: what becomes of them, and that they are bounded."""

from __future__ import annotations

import pytest

from indexer import orphans
from indexer.blocks import TOKEN_BYTES, chain_block_hashes, pack_tokens, root_seed
from indexer.events import BlockStored, Tier
from indexer.feed import KvFeed
from indexer.orphans import Orphans
from tests.support.vllm_events import batch, cleared, removed, stored

PROMPT = list(range(20))  # five blocks of four


def hashes() -> list[int]:
    return chain_block_hashes(pack_tokens(PROMPT), 4 * TOKEN_BYTES, root_seed("m"))


def block(number: int, **fields: object) -> dict[str, object]:
    """The block of that number, from 1, whose parent is the one before."""
    tokens = PROMPT[4 * number - 4 : 4 * number]
    return stored([number], tokens, parent=number - 1 or None, **fields)


class Worker:
    def __init__(self) -> None:
        self.feed = KvFeed()
        self.sequence = -1
        self.feed.add_publisher(0, engine="vllm", base_model="m", block_tokens=4, can_replay=False)

    def publish(self, *events: object) -> None:
        self.sequence += 1
        self.feed.receive(0, self.sequence, batch(*events))
        self.feed.check()

    @property
    def depth(self) -> int:
        return self.feed.overlap(hashes(), 1).device.get(0, 0)

    @property
    def counts(self) -> tuple[int, int]:
        stats = self.feed.stats(0)
        return stats.num_orphans, stats.num_orphans_adopted


@pytest.fixture
def worker() -> Worker:
    return Worker()


def test_it_never_starts_a_chain(worker: Worker) -> None:
    worker.publish(block(3), block(4))
    assert worker.depth == 0
    assert worker.feed.stats(0).num_blocks == 0
    tail = chain_block_hashes(pack_tokens(PROMPT[8:]), 4 * TOKEN_BYTES, root_seed("m"))
    assert worker.feed.overlap(tail, 1).device == {}


def test_it_is_claimed_when_its_parent_comes(worker: Worker) -> None:
    worker.publish(block(3))
    worker.publish(stored([1, 2], PROMPT[:8]))
    assert worker.depth == 3
    assert worker.counts == (1, 1)


def test_a_whole_branch_waits_for_one_parent(worker: Worker) -> None:
    worker.publish(block(5), block(4), block(3), block(2))
    worker.publish(block(1))
    assert worker.depth == 5
    assert worker.counts == (4, 4)


def test_a_parent_that_its_event_names_twice(worker: Worker) -> None:
    worker.publish(block(3))
    worker.publish(stored([1, 2, 2], PROMPT[:12]))
    assert worker.counts == (1, 1)


def test_a_long_branch(worker: Worker) -> None:
    """However long: adoption does not recurse."""
    names = range(2, 3000)
    worker.publish(*(stored([name], [name] * 4, parent=name - 1) for name in names))
    worker.publish(block(1))
    assert worker.feed.stats(0).num_blocks == 2999


def test_what_was_removed_while_it_waited_is_not_claimed(worker: Worker) -> None:
    worker.publish(block(3), block(4), removed(3))
    worker.publish(stored([1, 2], PROMPT[:8]))
    assert worker.depth == 2
    worker.publish(block(3))
    assert worker.depth == 4, "its child was not removed"


def test_a_repeated_block_is_removed_once_per_copy(worker: Worker) -> None:
    worker.publish(block(2), block(2), removed(2))
    worker.publish(block(1))
    assert worker.depth == 2
    worker.publish(removed(2))
    assert worker.depth == 1


def test_another_tier_may_bring_the_parent(worker: Worker) -> None:
    worker.publish(block(2))
    worker.publish(block(1, medium="CPU"))
    scores = worker.feed.overlap(hashes(), 1)
    assert (scores.device, scores.host) == ({}, {0: 1})
    worker.publish(block(1))
    assert worker.depth == 2


def test_names_wait_for_their_blocks(worker: Worker) -> None:
    worker.publish(stored([1, 2], [], medium="CPU"))
    assert worker.counts == (2, 0)
    worker.publish(stored([1, 2], PROMPT[:8]), removed(2))
    scores = worker.feed.overlap(hashes(), 1)
    assert (scores.device, scores.host) == ({0: 1}, {0: 1})


def test_a_removal_on_another_tier_is_another_matter(worker: Worker) -> None:
    worker.publish(block(2), removed(2, medium="CPU"))
    worker.publish(block(1))
    assert worker.depth == 2


@pytest.mark.parametrize("is_restart", [False, True], ids=["cleared", "restarted"])
def test_none_survives_its_engine(worker: Worker, is_restart: bool) -> None:
    worker.publish(block(2))
    if is_restart:
        worker.sequence = -1
    worker.publish(cleared(), block(1))
    assert worker.depth == 1


def test_they_wait_for_so_many_messages(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphans, "ORPHAN_MESSAGES", 3)
    worker.publish(block(2))
    for _ in range(3):
        worker.publish()
    worker.publish(block(1))
    assert worker.depth == 1
    assert worker.feed.stats(0).num_orphans_dropped == 1


@pytest.mark.parametrize(("bound", "value"), [("ORPHAN_BLOCKS", 2), ("ORPHAN_BYTES", 800)])
def test_the_oldest_goes_when_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch, bound: str, value: int
) -> None:
    monkeypatch.setattr(orphans, bound, value)
    waiting = Orphans()
    for number in (1, 2, 3):
        waiting.add(100 + number, BlockStored([number], 100 + number, [0] * 4, 4), message=0)
        waiting.check()
    assert [waiting.num_dropped, len(waiting)] == [1, 2]
    assert waiting.take([101]) == []
    assert [orphan.event.block_hashes for orphan in waiting.take([102, 103])] == [[2], [3]]
    assert (len(waiting), waiting.num_bytes) == (0, 0)
    assert not waiting.remove(2, Tier.DEVICE, 0)
    waiting.check()


def test_one_event_beyond_all_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphans, "ORPHAN_BLOCKS", 2)
    waiting = Orphans()
    waiting.add(9, BlockStored([1, 2, 3], 9, [0] * 12, 4), message=0)
    assert (len(waiting), waiting.num_dropped) == (0, 1)


def test_names_of_another_group_wait_without_its_tokens(worker: Worker) -> None:
    """Cut as the device turns out to be cut, they would else be taken for all blocks of their event."""
    full = {"kv_cache_spec_kind": "full_attention"}
    worker.publish(stored([1], PROMPT[:4], medium="CPU", group_idx=0, **full))
    worker.publish(stored([7, 8], [1, 2, 3, 4], medium="CPU", group_idx=1, block_tokens=2, **full))
    worker.publish(stored([7], [1, 2], group_idx=0, block_tokens=2, **full))
    assert worker.counts == (2, 1)
