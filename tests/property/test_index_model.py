"""The index behind the feed against an oracle of dictionaries and sets, under any sequence of events.

The oracle keeps, per worker, the paths (tuples of blocks from the prompt's start) that the engine has named,
how many copies of each, and which of them are claimed. It has the feed's rules: a store whose parent is not
known waits for it, what is removed while it waits is never claimed, a claim withdrawn by a report is counted
anew by the next store.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from xxhash import xxh3_64_intdigest

from indexer.blocks import TOKEN_BYTES, chain_block_hashes, pack_tokens, root_seed
from indexer.feed import KvFeed
from tests.support.vllm_events import batch, cleared, removed, stored

NUM_SLOTS = 3
BLOCK_TOKENS = 2
SALTS = ("", "tenant")

Path = tuple[str, tuple[int, ...]]  # salt, one number a block

slots = st.integers(0, NUM_SLOTS - 1)
paths = st.tuples(st.sampled_from(SALTS), st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple))


def tokens_of(path: Path) -> list[int]:
    return [token for block in path[1] for token in (block, block + 10)]


def hashes_of(path: Path) -> list[int]:
    seed = root_seed("m", cache_salt=path[0])
    return chain_block_hashes(pack_tokens(tokens_of(path)), BLOCK_TOKENS * TOKEN_BYTES, seed)


def name_of(slot: int, path: Path) -> int:
    """Workers 0 and 1 agree on names, worker 2 has a random seed."""
    return xxh3_64_intdigest(repr((slot == 2, path)).encode())


def prefix(path: Path, length: int) -> Path:
    return path[0], path[1][:length]


class Oracle:
    """One worker."""

    def __init__(self) -> None:
        self.copies: dict[Path, int] = {}
        self.claimed: set[Path] = set()
        self.waiting: list[tuple[Path, int, set[Path]]] = []  # path, start, removed meanwhile

    def store(self, path: Path, start: int) -> None:
        if start and prefix(path, start) not in self.copies:
            self.waiting.append((path, start, set()))
            return
        self.claim(path, start)
        gone = []
        while found := next((w for w in self.waiting if prefix(w[0], w[1]) in self.copies), None):
            self.waiting.remove(found)
            self.claim(*found[:2])
            gone += found[2]
        for block in gone:
            self.remove(block)

    def claim(self, path: Path, start: int) -> None:
        for end in range(start + 1, len(path[1]) + 1):
            block = prefix(path, end)
            held = block in self.copies and block in self.claimed
            self.copies[block] = self.copies[block] + 1 if held else 1
            self.claimed.add(block)

    def remove(self, block: Path) -> None:
        if block in self.copies:
            self.copies[block] -= 1
            if not self.copies[block]:
                del self.copies[block]
                self.claimed.discard(block)
            return
        for path, start, gone in self.waiting:
            named = {prefix(path, end) for end in range(start + 1, len(path[1]) + 1)}
            if block in named - gone:
                gone.add(block)
                return

    def depth(self, path: Path) -> int:
        lengths = range(1, len(path[1]) + 1)
        return next((n - 1 for n in lengths if prefix(path, n) not in self.claimed), len(path[1]))


class IndexMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.feed = KvFeed()
        self.oracles: dict[int, Oracle] = {}
        self.sequences: dict[int, int] = {}
        for slot in range(NUM_SLOTS):
            self.add(slot)

    def add(self, slot: int) -> None:
        self.feed.add_publisher(
            slot, engine="vllm", base_model="m", block_tokens=BLOCK_TOKENS, can_replay=False
        )
        self.oracles[slot] = Oracle()
        self.sequences[slot] = 0

    def publish(self, slot: int, *events: object) -> None:
        assert self.feed.receive(slot, self.sequences[slot], batch(*events)) == []
        self.sequences[slot] += 1

    @rule(slot=slots, path=paths, start=st.integers(0, 3))
    def store(self, slot: int, path: Path, start: int) -> None:
        start = min(start, len(path[1]) - 1)
        names = [name_of(slot, prefix(path, end)) for end in range(1, len(path[1]) + 1)]
        salt_keys = [[path[0]] if path[0] else None, *[None] * (len(names) - 1)]
        self.publish(
            slot,
            stored(
                names[start:],
                tokens_of(path)[start * BLOCK_TOKENS :],
                parent=names[start - 1] if start else None,
                block_tokens=BLOCK_TOKENS,
                extra_keys=salt_keys if not start else None,
            ),
        )
        self.oracles[slot].store(path, start)

    @rule(slot=slots, path=paths)
    def remove(self, slot: int, path: Path) -> None:
        self.publish(slot, removed(name_of(slot, path)))
        self.oracles[slot].remove(path)

    @rule(slot=slots)
    def clear(self, slot: int) -> None:
        self.publish(slot, cleared())
        self.oracles[slot] = Oracle()

    @rule(slot=slots, path=paths, reported=st.integers(0, 3))
    def report_less(self, slot: int, path: Path, reported: int) -> None:
        dropped = {prefix(path, end) for end in range(reported + 1, len(path[1]) + 1)}
        num_dropped = self.feed.truncate(slot, hashes_of(path)[reported:])
        assert num_dropped == len(dropped & self.oracles[slot].claimed)
        self.oracles[slot].claimed -= dropped

    @rule(slot=slots)
    def leave_and_come_back(self, slot: int) -> None:
        self.feed.remove_publisher(slot)
        while not self.feed.is_free(slot):
            self.feed.sweep()
        self.add(slot)

    @rule()
    def sweep(self) -> None:
        self.feed.sweep()

    @rule(path=paths, candidates=st.integers(0, 2**NUM_SLOTS - 1))
    def match(self, path: Path, candidates: int) -> None:
        expected = {
            slot: depth
            for slot, oracle in self.oracles.items()
            if candidates >> slot & 1 and (depth := oracle.depth(path))
        }
        assert self.feed.overlap(hashes_of(path), candidates).device == expected

    @invariant()
    def sizes(self) -> None:
        for slot, oracle in self.oracles.items():
            assert self.feed.stats(slot).num_blocks == len(oracle.claimed)
        self.feed.check()

    def teardown(self) -> None:
        """When every worker has left, nothing is left of them."""
        for slot in range(NUM_SLOTS):
            self.feed.remove_publisher(slot)
        while not self.feed.sweep():
            pass
        assert len(self.feed.index) == 0
        assert all(self.feed.is_free(slot) for slot in range(NUM_SLOTS))


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
