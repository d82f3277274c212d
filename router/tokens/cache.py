"""Tokens by content, with their block hashes, within a budget of bytes.

A repeated prompt costs neither a call to a worker nor hashing. The least recently used go first.
"""

from __future__ import annotations

from collections import OrderedDict

from indexer.blocks import TOKEN_BYTES, BlockHash
from router.tokens.hashing import RootSeed
from router.tokens.limits import CACHE_BYTES, CHAINS_PER_ENTRY, ENTRY_BYTES, HASH_BYTES


class TokenizedPrompt:
    """The packed token ids of one prompt, and the chains that were made of them."""

    __slots__ = ("chains", "packed")

    def __init__(self, packed: bytes) -> None:
        self.packed = packed
        self.chains: dict[RootSeed, list[BlockHash]] = {}

    @property
    def num_tokens(self) -> int:
        return len(self.packed) // TOKEN_BYTES

    def num_bytes(self) -> int:
        return ENTRY_BYTES + len(self.packed) + HASH_BYTES * sum(map(len, self.chains.values()))


class TokenCache:
    """Digest of a request for tokens -> its result."""

    def __init__(self, capacity_bytes: int = CACHE_BYTES) -> None:
        self._capacity_bytes = capacity_bytes
        self._entries: OrderedDict[bytes, TokenizedPrompt] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, digest: bytes) -> TokenizedPrompt | None:
        """The result, now the most recently used."""
        entry = self._entries.get(digest)
        if entry is not None:
            self._entries.move_to_end(digest)
        return entry

    def put(self, digest: bytes, entry: TokenizedPrompt) -> None:
        """Remember a result; one that exceeds the whole budget leaves at once."""
        self._forget(digest)
        self._entries[digest] = entry
        self.num_bytes += entry.num_bytes()
        self._shrink()

    def add_chains(
        self, digest: bytes, entry: TokenizedPrompt, chains: dict[RootSeed, list[BlockHash]]
    ) -> None:
        """Keep chains with their tokens. Harmless for an entry that has left the cache meanwhile."""
        is_held = self._entries.get(digest) is entry
        before = entry.num_bytes()
        if len(entry.chains) + len(chains) > CHAINS_PER_ENTRY:
            entry.chains.clear()
        entry.chains.update(chains)
        if is_held:
            self.num_bytes += entry.num_bytes() - before
            self._shrink()

    def _forget(self, digest: bytes) -> None:
        if (entry := self._entries.pop(digest, None)) is not None:
            self.num_bytes -= entry.num_bytes()

    def _shrink(self) -> None:
        while self.num_bytes > self._capacity_bytes:
            self._forget(next(iter(self._entries)))
