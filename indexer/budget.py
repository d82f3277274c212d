"""How much memory the exact index takes. Giving some of it up is the matter of the feed and of `runs`.

The largest share pays: of all key maps (one for each worker and tier) the one with the most blocks gives some
up, so a worker that floods pushes out nothing of the others. Within a map the ends of those prompts go that
were not gone on with for the longest time, as in the engines themselves: their caches forget the least
recently used, and ends before beginnings, so what is dropped here is what they are about to drop. A beginning
goes last, since engines announce a block once: without it nothing that builds on it could be placed any more.
"""

from __future__ import annotations

from collections.abc import Iterable

from indexer.keys import Garbage
from indexer.radix import RadixIndex
from indexer.runs import Tally

KEY_BYTES = 136
"""Of an engine hash in a key map: a dict entry of at most 60, two integers of 32, and its place in a run."""

COPY_BYTES = 92
"""Of a count of copies: a dict entry and an integer; small numbers are shared."""

RUN_BYTES = 264
"""Of a run of blocks: a list, a dict entry, and often one more for where it begins."""

ENTRY_BYTES = 76
"""Of a block in the index: a dict entry, and now and then the bitmask of several holders. Its hash is the key
map's."""

BLOCK_BYTES = KEY_BYTES + ENTRY_BYTES
"""Of a block that one worker holds, its share in a run left out."""


class MemoryBudget:
    """Bytes that indexes and key maps take, by the most that their entries come to."""

    def __init__(self, max_bytes: int, indexes: Iterable[RadixIndex]) -> None:
        self.max_bytes = max_bytes
        self.tally = Tally()
        self._indexes = tuple(indexes)

    @property
    def num_bytes(self) -> int:
        """In use; what waits to be swept included."""
        tally = self.tally
        names = KEY_BYTES * tally.num_keys + COPY_BYTES * tally.num_copies + RUN_BYTES * tally.num_runs
        return names + ENTRY_BYTES * sum(map(len, self._indexes))

    @property
    def excess_blocks(self) -> int:
        """How many blocks must go, at least; 0 when all fit."""
        return max(0, -((self.max_bytes - self.num_bytes) // BLOCK_BYTES))

    def let_go(self, garbage: Garbage) -> None:
        """Its memory is given back when the caller has no hold of it either."""
        self.tally.num_keys -= len(garbage.names)
        self.tally.num_runs -= len(garbage.runs)
