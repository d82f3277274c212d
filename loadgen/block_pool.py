"""The KV blocks of one modelled engine: prefix cache, reference counts, eviction, events.

Blocks are physical, as in vLLM: equal content may be resident several times (copies), each stored and removed
with an event of its own. A block whose content is known stays findable after its last user has gone, until
somebody needs the room; the block that was freed first goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from indexer.events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent

EngineBlockHash = int
BlockId = int


class BlockPool:
    """`num_blocks` blocks, one of which is reserved and never handed out, as vLLM's null block is."""

    def __init__(self, num_blocks: int) -> None:
        self.num_usable = num_blocks - 1
        self.events: list[KvEvent] = []
        """What happened since `take_events`, in order."""
        self._references = [0] * num_blocks
        self._hashes: list[EngineBlockHash | None] = [None] * num_blocks
        self._findable: dict[EngineBlockHash, BlockId] = {}
        self._more_copies: dict[EngineBlockHash, list[BlockId]] = {}
        """Copies beyond the findable one; rare, so that there is no container per block for the collector."""
        self._free: OrderedDict[BlockId, None] = OrderedDict.fromkeys(range(1, num_blocks))
        """Blocks without a user, cached ones included; the first is the next to be reused."""

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out, evictable ones included."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Distinct findable blocks."""
        return len(self._findable)

    def find_prefix(self, hashes: Sequence[EngineBlockHash]) -> list[BlockId]:
        """Blocks that hold the leading run of `hashes`; nobody's reference is changed."""
        found = []
        for block_hash in hashes:
            block_id = self._findable.get(block_hash)
            if block_id is None:
                break
            found.append(block_id)
        return found

    def num_unused(self, block_ids: Sequence[BlockId]) -> int:
        """How many of these have no user: taking them leaves that many fewer free."""
        return sum(not self._references[block_id] for block_id in block_ids)

    def reuse(self, block_ids: Sequence[BlockId]) -> None:
        """One more user for each of these cached blocks."""
        for block_id in block_ids:
            if not self._references[block_id]:
                del self._free[block_id]
            self._references[block_id] += 1

    def allocate(self, count: int) -> list[BlockId]:
        """`count` blocks with one user each, evicting the least recently used; needs `num_free >= count`."""
        assert count <= len(self._free)
        take, references, hashes = self._free.popitem, self._references, self._hashes
        block_ids = [take(last=False)[0] for _ in range(count)]
        evicted = []
        for block_id in block_ids:
            references[block_id] = 1
            if (block_hash := hashes[block_id]) is not None:
                hashes[block_id] = None
                evicted.append(block_hash)
                if block_hash in self._more_copies:
                    self._forget_copy(block_hash, block_id)
                else:
                    del self._findable[block_hash]
        if evicted:
            self.events.append(BlockRemoved(evicted))
        return block_ids

    def release(self, block_ids: Sequence[BlockId]) -> None:
        """One user fewer; the tail of a sequence is evicted before its head."""
        references, free = self._references, self._free
        for block_id in reversed(block_ids):
            references[block_id] -= 1
            if not references[block_id]:
                free[block_id] = None

    def register(self, block_ids: Sequence[BlockId], stored: BlockStored) -> None:
        """Makes the content of these blocks findable and announces it."""
        hashes, findable = self._hashes, self._findable
        for block_id, block_hash in zip(block_ids, stored.block_hashes, strict=True):
            assert isinstance(block_hash, int)
            hashes[block_id] = block_hash
            if findable.setdefault(block_hash, block_id) != block_id:
                self._more_copies.setdefault(block_hash, []).append(block_id)
        self.events.append(stored)

    def clear(self) -> bool:
        """Forgets all cached content. Refused, as in vLLM, while any block is in use."""
        if len(self._free) < self.num_usable:
            return False
        self._hashes = [None] * len(self._hashes)
        self._findable.clear()
        self._more_copies.clear()
        self.events.append(AllBlocksCleared())
        return True

    def take_events(self) -> list[KvEvent]:
        events, self.events = self.events, []
        return events

    def check(self) -> None:
        """Every invariant, O(size)."""
        assert all(count >= 0 for count in self._references)
        assert set(self._free) == {i for i, n in enumerate(self._references) if i and not n}
        held = {(block_hash, i) for i, block_hash in enumerate(self._hashes) if block_hash is not None}
        more = [(block_hash, i) for block_hash, ids in self._more_copies.items() for i in ids]
        listed = [*self._findable.items(), *more]
        assert len(listed) == len(held)
        assert set(listed) == held
        assert all(self._more_copies.values())

    def _forget_copy(self, block_hash: EngineBlockHash, block_id: BlockId) -> None:
        """One of several."""
        others = self._more_copies[block_hash]
        if self._findable[block_hash] == block_id:
            self._findable[block_hash] = others.pop()
        else:
            others.remove(block_id)
        if not others:
            del self._more_copies[block_hash]
