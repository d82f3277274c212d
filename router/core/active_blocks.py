"""The blocks that active requests of one worker hold; a block of several requests counts once.

A radix tree whose edges are runs of blocks that the same requests hold. Hashes are chained, so two runs that
agree in one place agree in all before it: a prompt is taken along an edge by one comparison, or one bisection
where it leaves the edge, however many blocks that is.

A chain's depth is in hashes, counts are in the workers' blocks: see `indexer.byte_blocks`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from indexer.blocks import BlockHash, Unit
from indexer.byte_blocks import COVERED


class _Edge:
    """Blocks that `num_holders` requests hold, and what their prompts go on with, by its first block."""

    __slots__ = ("blocks", "children", "num_holders")

    def __init__(self, blocks: Sequence[BlockHash], children: _Edges, num_holders: int) -> None:
        self.blocks = blocks
        self.children = children
        self.num_holders = num_holders

    def num_common(self, chain: Sequence[BlockHash], start: int) -> int:
        """How many of its blocks the chain has from `start` on, where it has the first."""
        blocks, end = self.blocks, len(chain) - start
        if end > len(blocks):
            end = len(blocks)
        if chain[start + end - 1] == blocks[end - 1]:
            return end
        return bisect_left(range(end), True, lo=1, key=lambda i: chain[start + i] != blocks[i])

    def split(self, num_blocks: int) -> None:
        """Keep the first `num_blocks`, the rest becomes its child."""
        rest = _Edge(self.blocks[num_blocks:], self.children, self.num_holders)
        self.blocks = self.blocks[:num_blocks]
        self.children = {rest.blocks[0]: rest}


_Edges = dict[BlockHash, _Edge]


class ActiveBlocks:
    """`add` and `remove` come in pairs of the same arguments. `unit`: that of all prompts here."""

    __slots__ = ("_children", "_covered", "_num_unshared", "num_blocks")

    def __init__(self, unit: Unit = Unit.TOKENS) -> None:
        self._covered = COVERED[unit]
        self._children: _Edges = {}
        self._num_unshared = 0
        self.num_blocks = 0
        """Distinct blocks of all prompts, and those that are counted without a hash."""

    def add(self, chain: Sequence[BlockHash], num_unshared: int) -> None:
        self._num_unshared += num_unshared
        self.num_blocks += num_unshared
        children, start = self._children, 0
        while start < len(chain):
            edge = children.get(chain[start])
            if edge is None:
                children[chain[start]] = _Edge(chain[start:], {}, 1)
                self.num_blocks += self._covered[len(chain)] - self._covered[start]
                return
            num_common = edge.num_common(chain, start)
            if num_common < len(edge.blocks):
                edge.split(num_common)
            edge.num_holders += 1
            children, start = edge.children, start + num_common

    def remove(self, chain: Sequence[BlockHash], num_unshared: int) -> None:
        self._num_unshared -= num_unshared
        self.num_blocks -= num_unshared
        children, start = self._children, 0
        while start < len(chain):
            edge = children[chain[start]]  # it ends where the chain ends, or before: `add` has seen to it
            edge.num_holders -= 1
            if not edge.num_holders:  # nor does anybody hold what comes behind
                del children[chain[start]]
                self.num_blocks -= self._covered[len(chain)] - self._covered[start]
                return
            children, start = edge.children, start + len(edge.blocks)

    def shared_depth(self, chain: Sequence[BlockHash]) -> int:
        """How many leading hashes of `chain` are held already."""
        children, start = self._children, 0
        while start < len(chain) and (edge := children.get(chain[start])):
            num_common = edge.num_common(chain, start)
            start += num_common
            if num_common < len(edge.blocks):
                break
            children = edge.children
        return start

    def num_additional(self, chain: Sequence[BlockHash]) -> int:
        """How many blocks would come with `chain`."""
        return self._covered[len(chain)] - self._covered[self.shared_depth(chain)]

    def check(self, chains: Sequence[Sequence[BlockHash]], num_unshared: int) -> None:
        """Asserts that exactly these chains are held, and so many blocks besides."""
        expected: Counter[BlockHash] = Counter()
        widths: dict[BlockHash, int] = {}
        for chain in chains:
            expected.update(chain)
            widths.update(zip(chain, (end - start for start, end in pairwise(self._covered)), strict=False))
        assert dict(_holders(self._children)) == dict(expected)
        assert self._num_unshared == num_unshared
        assert self.num_blocks == sum(widths.values()) + num_unshared


def _holders(edges: _Edges) -> Iterator[tuple[BlockHash, int]]:
    waiting = list(edges.items())
    while waiting:
        first, edge = waiting.pop()
        assert edge.blocks[0] == first, "an edge is found by its first block"
        waiting += edge.children.items()
        for block_hash in edge.blocks:
            yield block_hash, edge.num_holders
