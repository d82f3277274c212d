"""A stream with messages lost, doubled, reordered and restarted never makes the index promise too much.

An engine with a real cache publishes; the transport between it and the feed is bad; replays come late, in
part, or fail. Whenever the feed calls the worker exact, it promises no more than the engine held after the
message that the feed applied last. When everything is delivered in the end, it promises exactly what the
engine holds. Now and then the feed is another process's, which begins with an old snapshot of this one or of
one of its forerunners.
"""

from __future__ import annotations

from collections import OrderedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.blocks import TOKEN_BYTES, chain_block_hashes, pack_tokens, root_seed
from indexer.feed import KvFeed, RequestReplay
from indexer.snapshot import read_snapshot
from indexer.trust import TrustLevel
from tests.support.vllm_events import batch, cleared, removed, stored

CAPACITY = 5
REPLAY_BUFFER = 12
BLOCKS = 3

Path = tuple[int, ...]
PROMPTS: list[Path] = [(a, b, c) for a in range(2) for b in range(2) for c in range(2)]


def hashes_of(path: Path) -> list[int]:
    return chain_block_hashes(pack_tokens(path), TOKEN_BYTES, root_seed("m"))


class Engine:
    """A prefix cache of CAPACITY physical blocks, least recently used first, that does not merge copies."""

    def __init__(self, clock: float) -> None:
        self.clock = clock
        self.cache: OrderedDict[int, Path] = OrderedDict()  # physical block -> what it holds
        self.next_physical = 0
        self.published: list[bytes] = []
        self.held_after: list[frozenset[Path]] = []

    def compute(self, prompt: Path, *, again: bool) -> None:
        """`again`: as if nothing were cached, which makes copies."""
        events: list[object] = []
        for end in range(1, len(prompt) + 1):
            path = prompt[:end]
            cached = next((block for block, held in self.cache.items() if held == path), None)
            if cached is not None and not again:
                self.cache.move_to_end(cached)
                continue
            if len(self.cache) >= CAPACITY:
                _, evicted = self.cache.popitem(last=False)
                events.append(removed(hash(evicted)))
            self.cache[self.next_physical] = path
            self.next_physical += 1
            parent = hash(path[:-1]) if end > 1 else None
            events.append(stored([hash(path)], path[-1:], parent=parent, block_tokens=1))
        self.publish(*events)

    def clear(self) -> None:
        self.cache.clear()
        self.publish(cleared())

    def publish(self, *events: object) -> None:
        self.clock += 1.0
        self.published.append(batch(*events, timestamp=self.clock))
        self.held_after.append(frozenset(self.cache.values()))


class World:
    """Engine, transport and feed."""

    def __init__(self, *, can_replay: bool) -> None:
        self.can_replay = can_replay
        self.feed = self.new_feed()
        self.snapshots: list[bytes] = []
        self.engine = Engine(0.0)
        self.in_flight: list[int] = []
        self.replay: list[int] | None = None
        self.obey(self.feed.connected(0))

    def new_feed(self) -> KvFeed:
        feed = KvFeed()
        feed.add_publisher(0, engine="vllm", base_model="m", block_tokens=1, can_replay=self.can_replay)
        return feed

    def obey(self, commands: list[RequestReplay]) -> None:
        """Carry out a replay: the engine answers at once with what it still has, which arrives later."""
        for command in commands:
            oldest = max(0, len(self.engine.published) - REPLAY_BUFFER)
            self.replay = list(range(max(oldest, command.from_sequence), len(self.engine.published)))

    # What may happen.

    def step(self, action: str, number: int) -> None:
        getattr(self, action)(number)
        self.check()

    def compute(self, number: int) -> None:
        self.engine.compute(PROMPTS[number % len(PROMPTS)], again=False)
        self.in_flight.append(len(self.engine.published) - 1)

    def compute_again(self, number: int) -> None:
        self.engine.compute(PROMPTS[number % len(PROMPTS)], again=True)
        self.in_flight.append(len(self.engine.published) - 1)

    def clear(self, _number: int) -> None:
        self.engine.clear()
        self.in_flight.append(len(self.engine.published) - 1)

    def deliver(self, number: int) -> None:
        """Mostly the oldest, sometimes a later one."""
        if self.in_flight:
            self.receive(self.in_flight.pop(min(number % 6 // 4, len(self.in_flight) - 1)))

    def deliver_twice(self, _number: int) -> None:
        if self.in_flight:
            self.receive(self.in_flight[0])
            self.receive(self.in_flight.pop(0))

    def lose(self, _number: int) -> None:
        del self.in_flight[:1]

    def deliver_old(self, number: int) -> None:
        if self.engine.published:
            self.receive(number % len(self.engine.published))

    def garble(self, number: int) -> None:
        self.obey(self.feed.receive(0, number, b"garbage"))

    def corrupt(self, _number: int) -> None:
        if self.in_flight:
            self.obey(self.feed.receive(0, self.in_flight.pop(0), b"garbage"))

    def replay_some(self, number: int) -> None:
        """Part of the answer arrives, or its end."""
        if self.replay is None:
            return
        if not self.replay:
            self.replay = None
            self.obey(self.feed.replay_ended(0))
            return
        for _ in range(number % 5 + 1):
            if self.replay:
                sequence = self.replay.pop(0)
                payload = self.engine.published[sequence]
                self.obey(self.feed.receive_replay(0, sequence, payload))

    def lose_of_replay(self, _number: int) -> None:
        if self.replay:
            self.replay.pop(0)

    def fail_replay(self, _number: int) -> None:
        if self.replay is not None:
            self.replay = None
            self.obey(self.feed.replay_failed(0, "silence"))

    def reconnect(self, _number: int) -> None:
        self.in_flight.clear()
        self.feed.disconnected(0)
        self.check()
        self.obey(self.feed.connected(0))

    def save(self, _number: int) -> None:
        self.snapshots.append(b"".join(self.feed.snapshot({0: "w"})))

    def come_back(self, number: int) -> None:
        """As another process, with some snapshot of the past, of another engine process perhaps."""
        self.feed, self.replay = self.new_feed(), None
        self.in_flight.clear()
        saved = read_snapshot(self.snapshots[number % len(self.snapshots)]) if self.snapshots else {}
        if "w" in saved:
            for _ in self.feed.restore(0, saved["w"]):
                self.check()
        self.check()
        self.obey(self.feed.connected(0))

    def restart(self, number: int) -> None:
        """The new process may publish before anyone hears it."""
        self.engine = Engine(self.engine.clock)
        for unheard in range(number % 8):
            self.engine.compute(PROMPTS[unheard], again=False)
        self.replay = None if self.replay is None else []
        self.reconnect(number)

    def receive(self, sequence: int) -> None:
        self.obey(self.feed.receive(0, sequence, self.engine.published[sequence]))

    # What must hold.

    def promised(self) -> set[Path]:
        overlaps = {path: self.feed.overlap(hashes_of(path), 1).device.get(0, 0) for path in PROMPTS}
        return {path[:end] for path, depth in overlaps.items() for end in range(1, depth + 1)}

    def check(self) -> None:
        self.feed.check()
        last = self.feed.stats(0).last_sequence
        knows = last is not None and 0 <= last < len(self.engine.held_after)  # garbage may name any number
        if self.feed.trust(0).level is TrustLevel.EXACT and knows:
            assert self.promised() <= self.engine.held_after[last]
        else:
            assert self.promised() == set()

    def settle(self, *, with_replays: bool) -> None:
        """Everything arrives from now on, and the engine publishes once more, which shows any gap."""
        self.engine.clear()
        self.engine.compute(PROMPTS[0], again=False)
        self.in_flight = [len(self.engine.published) - 2, len(self.engine.published) - 1]
        while self.in_flight:
            self.receive(self.in_flight.pop(0))
        while self.replay is not None and with_replays:
            self.replay_some(4)


ACTIONS = {
    "compute": 8,
    "compute_again": 2,
    "clear": 1,
    "deliver": 10,
    "deliver_twice": 1,
    "deliver_old": 1,
    "lose": 2,
    "garble": 1,
    "corrupt": 1,
    "replay_some": 6,
    "lose_of_replay": 1,
    "fail_replay": 1,
    "reconnect": 1,
    "save": 2,
    "come_back": 1,
    "restart": 1,
}
steps = st.lists(
    st.tuples(
        st.sampled_from([action for action, weight in ACTIONS.items() for _ in range(weight)]),
        st.integers(0, 40),
    ),
    min_size=10,
    max_size=120,
)


@pytest.mark.parametrize("can_replay", [True, False], ids=["replay", "no replay"])
@given(steps=steps)
@settings(max_examples=300, deadline=None)
def test_never_more_than_the_engine_holds(can_replay: bool, steps: list[tuple[str, int]]) -> None:
    world = World(can_replay=can_replay)
    for action, number in steps:
        world.step(action, number)
    world.settle(with_replays=can_replay)
    assert world.feed.trust(0).level is TrustLevel.EXACT
    assert world.promised() == {PROMPTS[0][:end] for end in range(1, BLOCKS + 1)}


@given(prompts=st.lists(st.tuples(st.integers(0, 7), st.booleans()), max_size=60))
@settings(max_examples=100, deadline=None)
def test_a_good_stream_gives_exactly_what_the_engine_holds(prompts: list[tuple[int, bool]]) -> None:
    world = World(can_replay=True)
    world.replay_some(0)
    for number, again in prompts:
        world.engine.compute(PROMPTS[number], again=again)
        world.receive(len(world.engine.published) - 1)
        held = world.engine.held_after[-1]
        reachable = {path for path in held if all(path[:end] in held for end in range(1, len(path)))}
        assert world.promised() == reachable
