"""What the blocks of one worker's prompts depend on besides their tokens: model, adapter and cache salt.

vLLM's events name the salt with a prompt's first block only. Hashes whose root enters every block's need it
with the others too, so there it is remembered by block.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from indexer.blocks import BlockHash, BlockHashing
from indexer.events import BlockStored
from indexer.limits import NAMESPACES, SALTED_BLOCKS


class Namespaces:
    """The roots of one worker's prompts, under one way of hashing."""

    def __init__(self, hashing: BlockHashing, base_model: str) -> None:
        self._hashing = hashing
        self._base_model = base_model
        self._roots: dict[tuple[str, str], BlockHash] = {}
        self._salts: dict[BlockHash, str] = {}  # in the order of their coming

    def root(self, event: BlockStored, parent: BlockHash | None) -> BlockHash:
        """The root for an event's blocks, which follow `parent` or begin their prompt."""
        if parent is not None and not self._hashing.needs_root:
            return parent  # it stands for the root
        namespace = event.adapter, event.cache_salt or self._salts.get(parent or 0, "")
        root = self._roots.get(namespace)
        if root is None:
            if len(self._roots) >= NAMESPACES:
                self._roots.clear()
            root = self._hashing.root(self._base_model, adapter=namespace[0], cache_salt=namespace[1])
            self._roots[namespace] = root
        return root

    def claimed(self, event: BlockStored, parent: BlockHash | None, hashes: Sequence[BlockHash]) -> None:
        """These blocks may be parents now."""
        if not self._hashing.needs_root:
            return
        if salt := event.cache_salt or self._salts.get(parent or 0, ""):
            self._salts.update(dict.fromkeys(hashes, salt))
            num_too_many = max(0, len(self._salts) - SALTED_BLOCKS)
            for oldest in list(islice(self._salts, num_too_many)):
                del self._salts[oldest]

    def clear(self) -> None:
        """Nothing is claimed any more."""
        self._salts.clear()
