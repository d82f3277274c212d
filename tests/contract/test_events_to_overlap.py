"""What every engine's events must come to in the index, over each layout that they are sent in.

| test | what it proves |
| --- | --- |
| a prefix is as long as its leading blocks | full, longer, shorter, empty and missing queries |
| workers that part | depth is of each worker by itself |
| a block told of twice | nothing changes but the copies that the engine keeps; no error |
| an unknown parent | no claim, counted; a later prompt is unharmed, and the parent's coming heals it |
| removals | tail, middle and head cut the depth there; storing again restores it |
| removals of what is not held | no effect, nor has clearing an empty worker |
| clearing one worker | the others keep theirs, and the index shrinks |
| adapters and salts | apart from each other and from none, where the release tells them |
| tiers | what continues the device's prefix; the device's loss ends where the chain ends |
| what says nothing of a prefix | foreign media and stores are left out and counted |
| hashes of any kind | signed, unsigned and bytes name the same block in removals and as parents |
| another rank's messages | refused whole |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from indexer.blocks import TOKEN_BYTES, BlockHash, chain_block_hashes, pack_tokens, root_seed
from indexer.feed import KvFeed
from tests.support import sglang_events, vllm_events
from tests.support.vllm_events import EngineHash, batch

PROMPT = list(range(16))  # four blocks of four


def vllm_arrays(hashes: Sequence[EngineHash], tokens: Sequence[int], **fields: object) -> list[object]:
    event = vllm_events.stored(hashes, tokens, **fields)
    names = (
        "type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
        "lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind",
    )  # fmt: skip
    return [[event[name] for name in names]]


def removed_array(*hashes: EngineHash, medium: str = "GPU", **_: object) -> list[object]:
    return ["BlockRemoved", list(hashes), medium]


@dataclass(frozen=True)
class Wire:
    """How an engine of some release writes its events. `name` makes its hash of block n."""

    engine: str
    stored: Callable[..., list[object]]
    removed: Callable[..., object]
    cleared: Callable[[], object]
    name: Callable[[int], EngineHash]
    identifies: bool = True
    keeps_copies: bool = True


def as_list(make: Callable[..., object]) -> Callable[..., list[object]]:
    return lambda *args, **fields: [make(*args, **fields)]


def array_cleared() -> list[str]:
    return ["AllBlocksCleared"]


WIRES = {
    "vllm maps": Wire(
        "vllm",
        as_list(vllm_events.stored),
        vllm_events.removed,
        vllm_events.cleared,
        lambda n: 2**64 - n,
    ),
    "vllm bytes": Wire(
        "vllm",
        as_list(vllm_events.stored),
        vllm_events.removed,
        vllm_events.cleared,
        lambda n: bytes(24) + (2**64 - n).to_bytes(8, "big"),
    ),
    "vllm arrays": Wire("vllm", vllm_arrays, removed_array, array_cleared, lambda n: n),
    "vllm signed": Wire("vllm", vllm_arrays, removed_array, array_cleared, lambda n: -n),
    "sglang maps": Wire(
        "sglang",
        as_list(sglang_events.stored),
        sglang_events.removed,
        sglang_events.cleared,
        lambda n: -n,
        keeps_copies=False,
    ),
    "sglang arrays": Wire(
        "sglang",
        sglang_events.pages,
        removed_array,
        array_cleared,
        lambda n: 2**62 + n,
        identifies=False,
        keeps_copies=False,
    ),
}


class Worker:
    def __init__(self, wire: Wire, feed: KvFeed, slot: int = 0, **options: object) -> None:
        self.wire, self.feed, self.slot = wire, feed, slot
        self.sequence = -1
        feed.add_publisher(
            slot, engine=wire.engine, base_model="m", block_tokens=4, can_replay=False, **options
        )

    def publish(self, *events: object, rank: int | None = None) -> None:
        self.sequence += 1
        self.feed.receive(self.slot, self.sequence, batch(*events, rank=rank))
        self.feed.check()

    def store(self, first: int = 1, last: int = 4, **fields: object) -> None:
        """Blocks `first` to `last` of the prompt."""
        names = [self.wire.name(n) for n in range(first, last + 1)]
        tokens = PROMPT[4 * first - 4 : 4 * last]
        parent = None if first == 1 else self.wire.name(first - 1)
        self.publish(*self.wire.stored(names, tokens, parent=parent, **fields))

    def remove(self, *blocks: int, **fields: object) -> None:
        self.publish(self.wire.removed(*map(self.wire.name, blocks), **fields))

    def depth(self, hashes: Sequence[BlockHash] | None = None) -> int:
        return self.feed.overlap(chain() if hashes is None else hashes, 1 << self.slot).device.get(
            self.slot, 0
        )


def chain(tokens: Sequence[int] = PROMPT, *, adapter: str = "", salt: str = "") -> list[BlockHash]:
    seed = root_seed("m", adapter=adapter, cache_salt=salt)
    return chain_block_hashes(pack_tokens(tokens), 4 * TOKEN_BYTES, seed)


@pytest.fixture(params=WIRES)
def wire(request: pytest.FixtureRequest) -> Wire:
    return WIRES[request.param]


@pytest.fixture
def feed() -> KvFeed:
    return KvFeed()


@pytest.fixture
def worker(wire: Wire, feed: KvFeed) -> Worker:
    return Worker(wire, feed)


def test_a_prefix_is_as_long_as_its_leading_blocks(worker: Worker) -> None:
    worker.store(1, 3)
    assert worker.depth() == 3
    assert worker.depth(chain([*PROMPT, *PROMPT])) == 3
    assert worker.depth(chain(PROMPT[:8])) == 2
    assert worker.depth(chain(PROMPT[1:])) == 0
    assert worker.feed.overlap([], 1).device == {}


def test_workers_that_part(wire: Wire, feed: KvFeed) -> None:
    one, other = Worker(wire, feed), Worker(wire, feed, 1)
    one.store()
    other.store(1, 2)
    assert feed.overlap(chain(), 0b11).device == {0: 4, 1: 2}


def test_a_block_told_of_twice(worker: Worker) -> None:
    worker.store()
    worker.store()
    assert worker.depth() == 4
    assert worker.feed.stats(0).num_blocks == 4
    worker.remove(4)
    assert worker.depth() == (4 if worker.wire.keeps_copies else 3)


def test_an_unknown_parent(worker: Worker) -> None:
    worker.store(3, 4)
    assert (worker.depth(), worker.feed.stats(0).num_blocks) == (0, 0)
    assert worker.feed.stats(0).num_orphans
    worker.store(1, 1)
    assert worker.depth() == 1
    worker.store(2, 2)
    assert worker.depth() == 4


def test_removals_cut_the_depth(worker: Worker) -> None:
    for block in (4, 2, 1):
        worker.store()
        worker.remove(block)
        assert worker.depth() == block - 1
        worker.store(block, 4) if block > 1 else worker.store(1, 1)
        assert worker.depth() == 4
        worker.publish(worker.wire.cleared())


def test_removals_of_what_is_not_held(worker: Worker) -> None:
    worker.remove(1, 2)
    worker.publish(worker.wire.cleared())
    worker.store(1, 2)
    worker.remove(77)
    assert worker.depth() == 2


def test_clearing_one_worker(wire: Wire, feed: KvFeed) -> None:
    one, other = Worker(wire, feed), Worker(wire, feed, 1)
    one.store()
    other.store(1, 2)
    one.publish(wire.cleared())
    while not feed.sweep():
        pass
    assert feed.overlap(chain(), 0b11).device == {1: 2}
    assert len(feed.index) == 2


def test_adapters_and_salts(worker: Worker) -> None:
    if not worker.wire.identifies:
        pytest.skip("before the release that names them")
    salted = {"cache_salt": "s"} if worker.wire.engine == "sglang" else {"extra_keys": [["s"]]}
    tuned = {"lora_name": "a"}
    both = {"cache_salt": "s"} if worker.wire.engine == "sglang" else {"extra_keys": [["a", "s"]]}
    expected = {("", ""): 1, ("", "s"): 1, ("a", ""): 1, ("a", "s"): 1, ("b", ""): 0, ("", "t"): 0}
    for number, fields in enumerate(({}, salted, tuned, tuned | both)):
        name = worker.wire.name(10 + number)
        worker.publish(*worker.wire.stored([name], PROMPT[:4], parent=None, **fields))
    depths = {(adapter, salt): worker.depth(chain(adapter=adapter, salt=salt)) for adapter, salt in expected}
    assert depths == expected


@pytest.mark.parametrize("medium", ["CPU", "DISK"])
def test_tiers_continue_the_devices_prefix(worker: Worker, medium: str) -> None:
    worker.store()
    worker.store(3, 4, medium=medium)
    worker.remove(3, 4)
    scores = worker.feed.overlap(chain(), 1)
    lower = scores.host if medium == "CPU" else scores.disk
    assert (scores.device, lower) == ({0: 2}, {0: 2})
    worker.remove(2)
    scores = worker.feed.overlap(chain(), 1)
    assert (scores.device, scores.host, scores.disk) == ({0: 1}, {}, {}), "the chain ends before the third"


@pytest.mark.parametrize(("medium", "reason"), [("EXTERNAL", "external"), ("TAPE", "medium")])
def test_what_says_nothing_of_a_prefix(worker: Worker, medium: str, reason: str) -> None:
    worker.store(1, 1, medium=medium)
    worker.remove(1, medium=medium)
    assert worker.depth() == 0
    assert worker.feed.stats(0).ignored == {reason: 2}


def test_another_ranks_messages_are_refused_whole(wire: Wire, feed: KvFeed) -> None:
    worker = Worker(wire, feed, dp_rank=1)
    worker.publish(*wire.stored([wire.name(1)], PROMPT[:4], parent=None), rank=0)
    assert worker.depth() == 0
    assert feed.stats(0).ignored == {"other_rank": 1}
    worker.sequence = -1
    for rank in (1, None):  # a release that names none is believed
        worker.publish(*wire.stored([wire.name(1)], PROMPT[:4], parent=None), rank=rank)
        assert worker.depth() == 1
