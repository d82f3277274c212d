"""Hybrid models: what a worker holds in its KV-cache groups besides the main one, and how long a prefix all
of them support.

A model whose layers attend differently keeps a cache for each kind. A prefix can be gone on from at its end
only if every group has what its layers need there. The rule is that of vLLM 0.32's hybrid KV-cache
coordinator (`vllm/v1/core/kv_cache_coordinator.py`, `single_type_kv_cache_manager.py`):

* full attention: every block from the start;
* a sliding window of w tokens: the blocks that cover the w - 1 tokens before the end, or all from the start;
* state-space layers: the one block that ends there, which holds the state;
* a length that one group cannot support is shortened until all agree, and is a multiple of every group's
  blocks.

Groups name equal prefixes by equal hashes, so a block that a group only names is described by the main
group's event. Held is what any of the tiers looked at holds.

Only slots of such models get here; for all others nothing is done.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm

from indexer.blocks import BlockHash
from indexer.events import BlockRemoved, BlockStored, GroupKind, Tier
from indexer.keys import Garbage, KeyMap
from indexer.limits import GROUPS
from indexer.radix import RadixIndex, Slot
from indexer.runs import Key, Tally

_TIERS = tuple(Tier)
"""From the nearest to the furthest."""

Held = Callable[[int], bool]
"""Whether the block at a position of the prompt (from 0) is held."""


@dataclass(frozen=True, slots=True)
class Need:
    """What a group's layers need. `step`: blocks of the main group in one of this group's; `span`: its own
    blocks that a window covers."""

    kind: GroupKind
    step: int = 1
    span: int = 1

    @classmethod
    def of(cls, event: BlockStored, main_block_tokens: int) -> Need:
        """What an event says of its group. Blocks finer than the main group's are seen where one of those
        ends."""
        step = max(1, event.block_tokens // main_block_tokens)
        span = -(-(event.window_tokens - 1) // (step * main_block_tokens))
        return cls(event.kind, step, max(1, span))

    def longest(self, held: Held, limit: int, alignment: int) -> int:
        """The longest prefix of at most `limit` blocks that the group supports, a multiple of `alignment`."""
        if self.kind is GroupKind.STATE:
            ends = range(limit - limit % alignment, 0, -alignment)
            return next((end for end in ends if held(end - 1)), 0)
        if self.kind is GroupKind.WINDOW:
            return self._longest_by_window(held, limit, alignment)
        end = self._run(held, limit)
        return end - end % alignment

    def _longest_by_window(self, held: Held, limit: int, alignment: int) -> int:
        """From the right: the first end with enough blocks before it, or with all that there are."""
        end = limit - limit % alignment
        while end > 0:
            start = max(0, end - self.span * self.step)
            missing = next((at for at in range(end, start, -self.step) if not held(at - 1)), 0)
            if not missing:
                return end
            end = missing - self.step
            end -= end % alignment
        return 0

    def _run(self, held: Held, limit: int) -> int:
        end = 0
        while end + self.step <= limit and held(end + self.step - 1):
            end += self.step
        return end


class Group:
    """One group of one worker, by tier. `lane` is its slot in the indexes of groups."""

    def __init__(
        self, lane: Slot, event: BlockStored, indexes: Mapping[Tier, RadixIndex], tally: Tally
    ) -> None:
        self.event = event
        """One of its events, which says what kind of group it is."""
        self._lane = lane
        self._indexes = indexes
        self._tally = tally
        self.maps: dict[Tier, KeyMap] = {}

    def map_of(self, tier: Tier) -> KeyMap:
        """Its blocks in a tier."""
        if tier not in self.maps:
            self.maps[tier] = KeyMap(self._indexes[tier], self._lane, self._tally)
        return self.maps[tier]

    def holds(self, block_hash: BlockHash, tiers: Collection[Tier]) -> bool:
        """Whether it holds a block in any of these tiers."""
        return any(tier in tiers and self._indexes[tier].holds(self._lane, block_hash) for tier in self.maps)


class Groups:
    """Which group of one worker an event speaks of.

    The main group is the first that needs every block; `main_maps` and `main_indexes` are its. The indexes of
    the other groups hold those of all workers.
    """

    def __init__(
        self,
        slot: Slot,
        main_maps: Mapping[Tier, KeyMap],
        main_indexes: Mapping[Tier, RadixIndex],
        indexes: Mapping[Tier, RadixIndex],
        tally: Tally,
    ) -> None:
        self._slot = slot
        self._tally = tally
        self._main_maps = main_maps
        self._main_indexes = main_indexes
        self._indexes = indexes
        self.main: int | None = None
        """The main group, as the engine numbers it; None before it was heard of."""
        self.others: dict[int, Group] = {}
        """Besides the main one, as the engine numbers them."""

    def is_main(self, number: int) -> bool:
        """Whether the engine calls the main group so."""
        return number == self.main

    def map_for(self, event: BlockStored) -> KeyMap | None:
        """Where the event's blocks are held; None for a group of which too little is known."""
        if event.group == self.main or self._becomes_main(event):
            return self._main_maps[event.tier]
        group = self._learn(event)
        return group.map_of(event.tier) if group else None

    def map_for_removal(self, event: BlockRemoved) -> KeyMap | None:
        """The same; None for a group that holds nothing."""
        if event.group == self.main:
            return self._main_maps[event.tier]
        group = self.others.get(event.group)
        return group.map_of(event.tier) if group else None

    def _becomes_main(self, event: BlockStored) -> bool:
        if self.main is not None or event.kind in (GroupKind.WINDOW, GroupKind.STATE):
            return False
        if event.kind is GroupKind.UNTOLD and not event.token_ids:
            return False  # blocks of any group, named by an offloading tier
        self.main = event.group
        return True

    def maps(self) -> Iterator[KeyMap]:
        """Of all groups and tiers."""
        for group in self.others.values():
            yield from group.maps.values()

    def _learn(self, event: BlockStored) -> Group | None:
        """The event's group, as it says; None when it says too little or there are too many groups."""
        group = self.others.get(event.group)
        if group is None and event.kind is not GroupKind.UNTOLD and len(self.others) < GROUPS:
            described = replace(event, block_hashes=(), token_ids=(), extra=())
            lane = self._slot * GROUPS + len(self.others)
            group = self.others[event.group] = Group(lane, described, self._indexes, self._tally)
        return group

    def block_hash(self, key: Key) -> BlockHash | None:
        """Our hash of a block that any of them holds."""
        known = (key_map.block_hash(key) for key_map in self.maps())
        return next((block_hash for block_hash in known if block_hash is not None), None)

    def depths(self, hashes: Sequence[BlockHash], block_tokens: int) -> tuple[int, int, int]:
        """How many leading blocks the device supports, and how many more host and disk do. `block_tokens` are
        the main group's."""
        device, host, disk = (
            self._longest(hashes, block_tokens, _TIERS[:num_tiers]) for num_tiers in range(1, len(_TIERS) + 1)
        )
        return device, host - device, disk - host

    def _longest(self, hashes: Sequence[BlockHash], block_tokens: int, tiers: Collection[Tier]) -> int:
        """How many leading blocks can be gone on from with what these tiers hold."""
        rules = [
            (Need.of(group.event, block_tokens), _held(group, hashes, tiers))
            for group in self.others.values()
        ]
        alignment = lcm(*(need.step for need, _ in rules))
        length, before = self._main_run(hashes, tiers), -1
        length -= length % alignment
        while length != before:
            before = length
            for need, held in rules:
                length = need.longest(held, length, alignment)
        return length

    def _main_run(self, hashes: Sequence[BlockHash], tiers: Collection[Tier]) -> int:
        """Leading blocks that the main group holds; all, in a model without such a group."""
        if self.main is None:
            return len(hashes)
        indexes = [self._main_indexes[tier] for tier in tiers]
        for position, block_hash in enumerate(hashes):
            if not any(index.holds(self._slot, block_hash) for index in indexes):
                return position
        return len(hashes)

    def clear(self) -> list[Garbage]:
        """Forget the groups and what those besides the main one hold; returns that, as KeyMap.clear does."""
        garbage = [shard for key_map in self.maps() for shard in key_map.clear()]
        self.others = {}
        self.main = None
        return garbage

    def check(self) -> None:
        """Assert every invariant; O(size)."""
        for key_map in self.maps():
            key_map.check()


def _held(group: Group, hashes: Sequence[BlockHash], tiers: Collection[Tier]) -> Held:
    return lambda position: group.holds(hashes[position], tiers)
