"""How the blocks of one key map hang together, as far as giving some up needs it: what goes is always an end,
so nothing that is kept loses its beginning.

Blocks that were stored one behind the other are a run. A run knows the block that it continues, and is found
by its last block: what comes next extends it. Where a second prompt goes on from a block, a run of its own
begins there. Runs are in the order in which they were last extended.

What a block is called and held by is the key map's matter. A removal by the engine takes the end of a run
away; what goes from its middle stays listed until the end has come down to it.

Memory: 9 bytes a block, and about 200 a run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from indexer.blocks import HASH_BITS
from indexer.limits import EVICTION_RUNS, EVICTION_SHARD_SHARE, KEY_SHARDS

Key = int
"""An engine hash, reduced to HASH_BITS."""

KEY_SHARD_SHIFT = HASH_BITS - (KEY_SHARDS - 1).bit_length()

_Run = list[int | None]
"""The block before the first (None: the run begins a prompt), then its blocks in their order."""


@dataclass(slots=True)
class Tally:
    """What all key maps hold together, those entries included that wait for their memory to be given back."""

    num_keys: int = 0
    num_copies: int = 0
    num_runs: int = 0


class Runs:
    """The runs of blocks that are `held`, counted in `tally` too."""

    def __init__(self, held: Callable[[Key], bool], tally: Tally) -> None:
        self._is_held = held
        self._tally = tally
        self._shards: list[dict[Key, _Run]] = [{} for _ in range(KEY_SHARDS)]  # by the last block
        self._branches: list[dict[Key, int]] = [{} for _ in range(KEY_SHARDS)]  # runs that go on from a block
        self._shard_at = 0
        self._shortened: dict[Key, _Run] = {}  # what is given up next, by the last block; at most one run

    def add(self, parent: Key | None, keys: Sequence[Key]) -> None:
        """These blocks, which were not held before, follow each other and `parent`."""
        run = None if parent is None else self._take(parent)
        if run is None:
            run = self._begin(parent)
        run.extend(keys)
        self._shards[keys[-1] >> KEY_SHARD_SHIFT][keys[-1]] = run

    def discard(self, key: Key) -> None:
        """The block is no longer held."""
        run = self._take(key)
        if run is not None:
            run.pop()
            self._put_back(run)

    def drop_oldest(self, max_blocks: int, drop: Callable[[Key], None]) -> int:
        """Hands at most so many blocks to `drop`, from the ends of the oldest runs; returns how many, 0 when
        there are none.

        A run that others go on from keeps what they need, and waits for another turn.
        """
        for _ in range(KEY_SHARDS):
            num_dropped = 0
            for key in self._oldest():
                if num_dropped < max_blocks and (run := self._take(key)) is not None:
                    num_dropped += self._shorten(run, max_blocks - num_dropped, drop)
            if num_dropped:
                return num_dropped
        return 0

    def clear(self) -> list[tuple[dict[Key, _Run], dict[Key, int]]]:
        """Forget everything; returns what was known, for its memory to be given back in slices. Until then
        the tally has it."""
        garbage = list(zip(self._shards, self._branches, strict=True))
        self._shards = [{} for _ in range(KEY_SHARDS)]
        self._branches = [{} for _ in range(KEY_SHARDS)]
        garbage.append((self._shortened, {}))
        self._shortened = {}
        return garbage

    def copied(self) -> list[list[int | None]]:
        """Every run as it is now: its parent, then its blocks, among them some that are not held any more or
        listed twice. About 10 ns a block."""
        return [list(run) for shard in (*self._shards, self._shortened) for run in shard.values()]

    def __len__(self) -> int:
        return len(self._shortened) + sum(map(len, self._shards))

    def check(self) -> None:
        """Assert every invariant; O(size)."""
        runs = [(key, run) for shard in (*self._shards, self._shortened) for key, run in shard.items()]
        assert len({key for key, _ in runs}) == len(runs), "no two runs have the same end"
        branches: dict[Key, int] = {}
        for key, run in runs:
            assert len(run) > 1, "a run has blocks"
            assert run[-1] == key, "a run is found by its last block"
            assert self._is_held(key), "the last block of a run is held"
            if run[0] is not None:
                branches[run[0]] = branches.get(run[0], 0) + 1
        known = {key: count for shard in self._branches for key, count in shard.items()}
        assert branches == known, "runs are counted where they go on"

    def _begin(self, parent: Key | None) -> _Run:
        self._tally.num_runs += 1
        if parent is not None:
            branches = self._branches[parent >> KEY_SHARD_SHIFT]
            branches[parent] = branches.get(parent, 0) + 1
        return [parent]

    def _end(self, run: _Run) -> None:
        self._tally.num_runs -= 1
        if (parent := run[0]) is not None:
            branches = self._branches[parent >> KEY_SHARD_SHIFT]
            branches[parent] -= 1
            if not branches[parent]:
                del branches[parent]

    def _take(self, last: Key) -> _Run | None:
        """The run with that end, taken out."""
        run = self._shards[last >> KEY_SHARD_SHIFT].pop(last, None)
        return self._shortened.pop(last, None) if run is None else run

    def _last(self, run: _Run) -> Key | None:
        """The last block of a run that was taken out, without what was removed from its middle before or is
        the end of another run since; None when nothing is left."""
        while len(run) > 1:
            key = run[-1]
            assert key is not None
            is_of_another = key in self._shards[key >> KEY_SHARD_SHIFT] or key in self._shortened
            if self._is_held(key) and not is_of_another:
                return key
            run.pop()
        return None

    def _put_back(self, run: _Run) -> None:
        key = self._last(run)
        if key is None:
            self._end(run)
        else:
            self._shards[key >> KEY_SHARD_SHIFT][key] = run

    def _shorten(self, run: _Run, max_blocks: int, drop: Callable[[Key], None]) -> int:
        for num_dropped in range(max_blocks):
            key = self._last(run)
            if key is None or key in self._branches[key >> KEY_SHARD_SHIFT]:
                self._put_back(run)
                return num_dropped
            drop(key)
        if (key := self._last(run)) is None:
            self._end(run)
        else:
            self._shortened[key] = run
        return max_blocks

    def _oldest(self) -> list[Key]:
        """The ends of some runs, the oldest first. Shards take turns: together they give up the oldest first,
        as nearly as they are alike."""
        if self._shortened:
            return list(self._shortened)
        for _ in range(KEY_SHARDS):
            self._shard_at = (self._shard_at + 1) % KEY_SHARDS
            if shard := self._shards[self._shard_at]:
                return list(islice(shard, min(EVICTION_RUNS, 1 + len(shard) // EVICTION_SHARD_SHARE)))
        return []
