from __future__ import annotations

import random
from itertools import islice

import pytest

from indexer.feed import KvFeed, RequestReplay
from indexer.snapshot import MAGIC, SnapshotError, read_snapshot
from indexer.trust import TrustLevel
from tests.support.event_traffic import BLOCK_TOKENS, MODEL, chain_of, requests
from tests.support.vllm_events import batch, removed, stored

NUM_WORKERS = 2
NAMES = {slot: f"w{slot}" for slot in range(NUM_WORKERS)}


def feed_of(*, can_replay: bool = True, model: str = MODEL) -> KvFeed:
    feed = KvFeed()
    for slot in NAMES:
        feed.add_publisher(
            slot, engine="vllm", base_model=model, block_tokens=BLOCK_TOKENS, can_replay=can_replay
        )
    return feed


class Fleet:
    """Publishers with all that they ever sent, and prompts that somebody asked for."""

    def __init__(self, num_requests: int = 200) -> None:
        self.sent: dict[int, list[bytes]] = {slot: [] for slot in NAMES}
        self.prompts = []
        self._traffic = requests(NUM_WORKERS, 300, random.Random(1), num_live=8)
        self.run(num_requests)

    def run(self, num_requests: int) -> None:
        for request in islice(self._traffic, num_requests):
            if request.payload is not None:
                self.sent[request.worker].append(request.payload)
            self.prompts.append(chain_of(request.tokens))

    def replay(self, feed: KvFeed, commands: list[RequestReplay]) -> None:
        while commands:
            command = commands.pop()
            for sequence in range(command.from_sequence, len(self.sent[command.slot])):
                more = feed.receive_replay(command.slot, sequence, self.sent[command.slot][sequence])
                if more:
                    commands += more
                    break
            else:
                commands += feed.replay_ended(command.slot)

    def connect(self, feed: KvFeed) -> None:
        for slot in NAMES:
            self.replay(feed, feed.connected(slot))


def dump(feed: KvFeed) -> bytes:
    return b"".join(feed.snapshot(NAMES))


def restore(feed: KvFeed, data: bytes) -> None:
    snapshots = read_snapshot(data)
    for slot, name in NAMES.items():
        for _ in feed.restore(slot, snapshots[name]):
            pass


def scores(feed: KvFeed, fleet: Fleet) -> list[dict[int, int]]:
    return [dict(feed.overlap(prompt, 0b11).device) for prompt in fleet.prompts]


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


@pytest.fixture
def feed(fleet: Fleet) -> KvFeed:
    feed = feed_of()
    fleet.connect(feed)
    return feed


def test_a_dump_in_a_fresh_index_is_the_same_index(feed: KvFeed, fleet: Fleet) -> None:
    other = feed_of()
    restore(other, dump(feed))
    assert scores(other, fleet) == [{}] * len(fleet.prompts), "nothing counts before the engine was seen"
    fleet.connect(other)
    assert all(other.trust(slot).level is TrustLevel.EXACT for slot in NAMES)
    assert scores(other, fleet) == scores(feed, fleet)
    assert [other.stats(slot).last_sequence for slot in NAMES] == [
        feed.stats(slot).last_sequence for slot in NAMES
    ]
    other.check()
    again = feed_of()
    restore(again, dump(other))
    fleet.connect(again)
    assert scores(again, fleet) == scores(feed, fleet)


def test_what_came_since_is_replayed_and_nothing_before(feed: KvFeed, fleet: Fleet) -> None:
    data = dump(feed)
    fleet.run(100)
    other = feed_of()
    restore(other, data)
    asked = other.connected(0)
    assert asked == [RequestReplay(0, feed.stats(0).last_sequence)]
    fleet.replay(other, asked)
    fleet.replay(other, other.connected(1))
    fresh = feed_of()
    fleet.connect(fresh)
    assert scores(other, fleet) == scores(fresh, fleet)
    other.check()


@pytest.mark.parametrize("kept", [0, 1])
def test_an_engine_that_restarted_meanwhile_has_nothing_of_it(feed: KvFeed, kept: int) -> None:
    """Its numbers begin anew: the last one known is another message's, or nobody's."""
    data = dump(feed)
    other, restarted = feed_of(), Fleet(0)
    tokens = list(range(BLOCK_TOKENS))
    restarted.sent[0] = [batch(stored([1], tokens, block_tokens=BLOCK_TOKENS), timestamp=9.0)] * (
        1 + kept * (feed.stats(0).last_sequence or 0)
    )
    restore(other, data)
    restarted.replay(other, other.connected(0))
    assert other.index.num_blocks(0) == 1
    assert other.stats(0).num_restarts == 1


def test_what_cannot_be_verified_is_dropped(feed: KvFeed, fleet: Fleet) -> None:
    other = feed_of(can_replay=False)
    restore(other, dump(feed))
    fleet.connect(other)
    assert other.index.num_blocks(0) == 0
    assert other.trust(0).level is TrustLevel.EXACT


def test_live_messages_wait_for_the_verification(feed: KvFeed, fleet: Fleet) -> None:
    other = feed_of()
    restore(other, dump(feed))
    sequence = len(fleet.sent[0])
    fleet.sent[0].append(batch(removed(1)))
    assert other.receive(0, sequence, fleet.sent[0][-1]) == []
    assert other.trust(0).level is TrustLevel.RECOVERING
    fleet.connect(other)
    assert other.trust(0).level is TrustLevel.EXACT


def test_copies_are_carried_over() -> None:
    feed, fleet = feed_of(), Fleet(0)
    one = batch(stored([1, 2], list(range(8)), block_tokens=BLOCK_TOKENS))
    fleet.sent = {0: [one, one, batch(removed(2))], 1: []}
    fleet.connect(feed)
    other = feed_of()
    restore_one(other, dump(feed), 0)
    fleet.sent[0].append(batch(removed(1)))
    fleet.connect(other)
    assert other.index.num_blocks(0) == 2
    fleet.sent[0].append(batch(removed(1, 2)))
    other.receive(0, 4, fleet.sent[0][-1])
    assert other.index.num_blocks(0) == 0


def test_a_withdrawn_claim_stays_withdrawn(feed: KvFeed, fleet: Fleet) -> None:
    feed.truncate(0, fleet.prompts[-1])
    other = feed_of()
    restore(other, dump(feed))
    fleet.connect(other)
    assert scores(other, fleet) == scores(feed, fleet)


def test_another_worker_under_that_name_is_refused(feed: KvFeed) -> None:
    other = feed_of(model="another")
    with pytest.raises(SnapshotError, match="it is of 'm' on vllm"):
        restore(other, dump(feed))


def test_half_a_load_leaves_nothing(feed: KvFeed) -> None:
    other = feed_of()
    loading = other.restore(0, read_snapshot(dump(feed))["w0"])
    next(loading)
    assert other.index.num_blocks(0) > 0
    loading.close()
    assert other.index.num_blocks(0) == 0
    other.check()


def restore_one(feed: KvFeed, data: bytes, slot: int) -> None:
    for _ in feed.restore(slot, read_snapshot(data)[NAMES[slot]]):
        pass


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: b"", "no snapshot"),
        (lambda data: b"garbage" + data, "no snapshot"),
        (lambda data: data[: len(MAGIC)], "version missing"),
        (lambda data: MAGIC + b"\xff" + data[len(MAGIC) + 1 :], "version ff, this release reads 1"),
        (lambda data: data[:-1], "damaged"),
        (lambda data: data[: len(data) // 2], "damaged|breaks off"),
        (lambda data: data[: len(MAGIC) + 1], "breaks off"),
        (lambda data: data[:200] + bytes([data[200] ^ 1]) + data[201:], "damaged"),
    ],
)
def test_damage_is_noticed(feed: KvFeed, damage, words: str) -> None:
    with pytest.raises(SnapshotError, match=words):
        read_snapshot(damage(dump(feed)))


def test_damage_of_any_byte_is_noticed() -> None:
    feed, fleet = feed_of(), Fleet(4)
    fleet.connect(feed)
    data = dump(feed)
    assert 500 < len(data) < 20_000
    for position, byte in enumerate(data):
        broken = data[:position] + bytes([byte ^ 1 << position % 8]) + data[position + 1 :]
        with pytest.raises(SnapshotError):
            read_snapshot(broken)
        with pytest.raises(SnapshotError):
            read_snapshot(data[:position])


def test_what_was_withdrawn_and_stored_again_is_told() -> None:
    """The names of withdrawn blocks are left out, for as long as they are not claimed again."""
    feed, fleet = feed_of(), Fleet(0)
    tokens = list(range(2 * BLOCK_TOKENS))
    fleet.sent = {0: [batch(stored([1, 2], tokens, block_tokens=BLOCK_TOKENS))], 1: []}
    fleet.connect(feed)
    assert feed.truncate(0, chain_of(tokens)) == 2
    fleet.sent[0].append(batch(stored([1], tokens[:BLOCK_TOKENS], block_tokens=BLOCK_TOKENS)))
    feed.receive(0, 1, fleet.sent[0][-1])
    other = feed_of()
    restore_one(other, dump(feed), 0)
    fleet.connect(other)
    assert other.index.num_blocks(0) == 1
    other.check()
