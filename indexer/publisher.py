"""One worker's publisher: adapter, sequencer and key maps joined. Its events become blocks in the index here.

The order of messages is the sequencer's matter, names of blocks are the key maps', what waits for its parent
is the orphans', the groups of hybrid models besides the main one are the groups'; events are applied here.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from indexer.adapters import Adapter, MalformedFrame
from indexer.blocks import TOKEN_BYTES, BlockHash, Layout, chain_block_hashes, pack_tokens, root_seed
from indexer.events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch, GroupKind, Tier
from indexer.groups import Group, Groups
from indexer.keys import Key, KeyMap, key_of
from indexer.limits import NAMESPACES
from indexer.orphans import Orphans
from indexer.radix import RadixIndex, Slot
from indexer.sequencer import Apply, Forget, Message, Sequencer, Step
from indexer.trust import Trust, TrustLevel

_TIERS = tuple(Tier)
"""From the nearest to the furthest."""


@dataclass(slots=True)
class FeedStats:
    """Plain counters of one publisher since it was added. `ignored` counts by reason."""

    num_messages: int = 0
    num_events: int = 0
    num_blocks_stored: int = 0
    num_blocks_removed: int = 0
    num_clears: int = 0
    num_gaps: int = 0
    num_replays: int = 0
    num_restarts: int = 0
    num_orphans: int = 0
    """Stored events whose parent was not known when they came."""
    num_orphans_adopted: int = 0
    """Of these, how many could be claimed later."""
    num_orphans_dropped: int = 0
    """And how many waited in vain."""
    num_overreports: int = 0
    ignored: Counter[str] = field(default_factory=Counter)
    num_blocks: int = 0
    """Held on the device now."""
    last_sequence: int | None = None


class Publisher:
    """What is known of one worker through its events."""

    def __init__(
        self,
        slot: Slot,
        indexes: Mapping[Tier, RadixIndex],
        group_indexes: Mapping[Tier, RadixIndex],
        adapter: Adapter,
        *,
        base_model: str,
        expected: Layout | None,
        can_replay: bool,
        dp_rank: int | None,
    ) -> None:
        self.sequencer = Sequencer(can_replay=can_replay)
        self.stats = FeedStats()
        self.garbage: list[dict[Key, BlockHash]] = []
        """Forgotten entries, for their memory to be given back in slices."""
        self.expected = expected
        """How prompts are cut that this worker is matched with; None while nobody knows."""
        self.layout: Layout | None = None
        """How the worker cuts its blocks: the device's first event says it."""
        self.groups = Groups(slot, group_indexes)
        self.orphans = Orphans()
        self._slot = slot
        self._decode = adapter.decode
        self._base_model = base_model
        self._dp_rank = dp_rank
        self._indexes = indexes
        self._maps = {
            tier: KeyMap(index, slot, keeps_copies=adapter.keeps_copies) for tier, index in indexes.items()
        }
        self._seeds: dict[tuple[str, str], BlockHash] = {}
        self._main_group: int | None = None  # the first that needs every block
        self._num_batches = 0
        self._mixture = ""

    @property
    def is_exact(self) -> bool:
        """Whether the trust level is EXACT."""
        return not (self.sequencer.doubt or self._mismatch())

    def trust(self) -> Trust:
        """How far the claims of this worker may be believed now."""
        if mismatch := self._mismatch():
            return Trust(TrustLevel.DEGRADED, mismatch)
        if self.sequencer.doubt:
            return Trust(TrustLevel.RECOVERING, self.sequencer.doubt)
        return Trust(TrustLevel.EXACT, self.sequencer.missing_history)

    def current_stats(self) -> FeedStats:
        """The counters, brought up to date."""
        counted = self.sequencer.stats
        self.stats.num_gaps = counted.num_gaps
        self.stats.num_replays = counted.num_replays
        self.stats.num_restarts = counted.num_restarts
        self.stats.last_sequence = self.sequencer.last_sequence
        self.stats.num_orphans_dropped = self.orphans.num_dropped
        self.stats.num_blocks = self._indexes[Tier.DEVICE].num_blocks(self._slot)
        return self.stats

    def receive(self, sequence: int, payload: bytes, *, is_replay: bool) -> list[int]:
        """Take in one message; returns the numbers from which a replay must be asked for."""
        self.stats.num_messages += 1
        batch = self._read(payload)
        if batch is None and sequence != self.sequencer.next_sequence:
            self.ignore("malformed_payload")  # if it was one of the stream, a gap will show
            return []
        if batch is not None and self._names_other_rank(batch):
            self.ignore("other_rank")
            return []
        message = Message(sequence, payload, batch.timestamp if batch else 0.0)
        steps = self.sequencer.replayed(message) if is_replay else self.sequencer.live(message)
        return self.carry_out(steps, (message, batch))

    def carry_out(
        self, steps: list[Step], decoded: tuple[Message, EventBatch | None] | None = None
    ) -> list[int]:
        """Apply and forget as the sequencer says; returns the numbers to ask a replay from.

        `decoded` is the message at hand with its batch, so that it is not decoded twice.
        """
        replays_from = []
        for step in steps:
            if isinstance(step, Apply):
                at_hand = decoded is not None and decoded[0] is step.message
                self._apply(decoded[1] if decoded and at_hand else self._read(step.message.payload))
            elif isinstance(step, Forget):
                self.layout = None
                self._mixture = ""
                self.forget()
            else:
                replays_from.append(step.from_sequence)
        return replays_from

    def ignore(self, reason: str) -> None:
        """Count something that could not be used."""
        self.stats.ignored[reason] += 1

    def forget(self) -> None:
        """Drop every claim, in every tier."""
        self._main_group = None
        self.orphans.clear()
        self.garbage += self.groups.clear()
        for key_map in self._maps.values():
            self.garbage += key_map.clear()

    def depths(self, hashes: Sequence[BlockHash]) -> tuple[int, int, int]:
        """For a hybrid model: how many leading blocks its device supports, and how many more host and disk
        do."""
        block_tokens = self.layout.block_tokens if self.layout else 1
        ends = []
        for num_tiers in range(1, len(_TIERS) + 1):
            tiers = _TIERS[:num_tiers]
            ends.append(self.groups.longest(hashes, self._main_run(hashes, tiers), block_tokens, tiers))
        device, host, disk = ends
        return device, host - device, disk - host

    def truncate(self, hashes: Sequence[BlockHash]) -> int:
        """Drop the claims on these blocks: the engine reported that it does not hold them."""
        num_dropped = sum(index.truncate(self._slot, hashes) for index in self._indexes.values())
        self.stats.num_overreports += num_dropped > 0
        return num_dropped

    def check(self) -> None:
        """Assert every invariant; O(size)."""
        for key_map in self._maps.values():
            key_map.check()
        self.groups.check()
        self.orphans.check()

    def _read(self, payload: bytes) -> EventBatch | None:
        try:
            return self._decode(payload)
        except MalformedFrame:
            return None

    def _names_other_rank(self, batch: EventBatch) -> bool:
        return None not in (self._dp_rank, batch.dp_rank) and self._dp_rank != batch.dp_rank

    def _apply(self, batch: EventBatch | None) -> None:
        if batch is None:  # whatever it removed is unknown
            self.ignore("malformed_payload")
            self.forget()
            return
        self.stats.num_events += len(batch.events)
        if batch.ignored:
            self.stats.ignored.update(batch.ignored)
        self._num_batches += 1
        if self.orphans:
            self.orphans.expire(self._num_batches)
        for event in batch.events:
            if isinstance(event, BlockStored):
                self._store(event)
            elif isinstance(event, BlockRemoved):
                self._remove(event)
            else:
                self._clear(event)

    # What the worker tells.

    def _store(self, event: BlockStored) -> None:
        is_described = self._claim(event)
        if self.orphans and is_described:
            self._adopt_children(event)

    def _remove(self, event: BlockRemoved) -> None:
        key_map = self._map_for_removal(event)
        if key_map is None:
            self.ignore("attention_group")
            return
        some_wait = bool(self.orphans)
        for key in map(key_of, event.block_hashes):
            if some_wait and key_map.block_hash(key) is None:
                self.orphans.remove(key, event.tier, event.group)
            else:
                self.stats.num_blocks_removed += key_map.remove(key)

    def _clear(self, _event: AllBlocksCleared) -> None:
        self.stats.num_clears += 1
        self.forget()

    # How a stored event becomes claims.

    def _claim(self, event: BlockStored) -> bool:
        """Claim its blocks if possible; whether these are known by tokens now that may not have been
        before."""
        key_map = self._map_for(event)
        if key_map is None:
            self.ignore("attention_group")
        elif not event.token_ids or self._has_other_blocks(event):
            self._claim_named(event, key_map)
        elif not self._fits_layout(event):
            self.ignore("block_size")
        elif (seed := self._seed_of(event)) is None:
            self._let_wait(key_of(event.parent_hash or 0), event)
        else:
            return self._claim_described(event, key_map, seed)
        return False

    def _claim_described(self, event: BlockStored, key_map: KeyMap, seed: BlockHash) -> bool:
        try:
            packed = pack_tokens(event.token_ids)
        except (OverflowError, TypeError):
            self.ignore("token_ids")
            return False
        block_bytes, lookahead_bytes = event.block_tokens * TOKEN_BYTES, event.lookahead_tokens * TOKEN_BYTES
        hashes = chain_block_hashes(packed, block_bytes, seed, event.extra, lookahead_bytes)
        self.stats.num_blocks_stored += len(hashes)
        key_map.store(map(key_of, event.block_hashes), hashes)
        return True

    def _claim_named(self, event: BlockStored, key_map: KeyMap) -> None:
        """Offloading tiers and some groups name blocks without their tokens: others described them."""
        for engine_hash in event.block_hashes:
            key = key_of(engine_hash)
            block_hash = self._block_hash(key)
            if block_hash is None:
                self._let_wait(key, replace(event, block_hashes=(engine_hash,)))
            else:
                self.stats.num_blocks_stored += 1
                key_map.store((key,), (block_hash,))

    def _let_wait(self, needed: Key, event: BlockStored) -> None:
        self.stats.num_orphans += 1
        self.orphans.add(needed, event, self._num_batches)

    def _adopt_children(self, event: BlockStored) -> None:
        """Claim what waited for the blocks of this event, and what waited for those. What was removed
        meanwhile goes last, since others may be its children."""
        waited = deque(self.orphans.take(map(key_of, event.block_hashes)))
        adopted = []
        while waited:
            orphan = waited.popleft()
            adopted.append(orphan)
            if self._claim(orphan.event):
                waited += self.orphans.take(map(key_of, orphan.event.block_hashes))
        self.stats.num_orphans_adopted += len(adopted)
        for orphan in adopted:
            self._remove(BlockRemoved(tuple(orphan.removed), orphan.event.tier, orphan.event.group))

    # Groups.

    def _map_for(self, event: BlockStored) -> KeyMap | None:
        """Where the event's blocks are held; None for a group that decides no prefix hit."""
        if event.group != self._main_group and (group := self._other_group(event)) is not None:
            return group.map_of(event.tier)
        return self._maps[event.tier] if event.group == self._main_group else None

    def _other_group(self, event: BlockStored) -> Group | None:
        """The event's group when it is not the main one; the first that may be becomes it."""
        may_be_main = event.kind is GroupKind.FULL or (event.kind is GroupKind.UNTOLD and event.token_ids)
        if self._main_group is None and may_be_main:
            self._main_group = event.group
            self.layout = None
            return None
        return self.groups.learn(event)

    def _map_for_removal(self, event: BlockRemoved) -> KeyMap | None:
        if event.group == self._main_group:
            return self._maps[event.tier]
        group = self.groups.get(event.group)
        return group.map_of(event.tier) if group else None

    def _main_run(self, hashes: Sequence[BlockHash], tiers: Sequence[Tier]) -> int:
        """Leading blocks that the main group holds in any of these tiers; all, when there is no such
        group."""
        if self._main_group is None:
            return len(hashes)
        indexes = [self._indexes[tier] for tier in tiers]
        for position, block_hash in enumerate(hashes):
            if not any(index.holds(self._slot, block_hash) for index in indexes):
                return position
        return len(hashes)

    # How the worker cuts its blocks.

    def _fits_layout(self, event: BlockStored) -> bool:
        """Whether the event's blocks are cut like the others. On the device two kinds of cuts are too many;
        another tier may cut as it likes, but then no prompt will match."""
        layout = Layout(event.block_tokens, event.lookahead_tokens)
        if self.layout is None and event.tier is Tier.DEVICE:
            self.layout = layout
        known = self.layout or self.expected
        if known is None or layout == known:
            return True
        if event.tier is Tier.DEVICE and event.group == self._main_group:
            return self._fits_hybrid(layout, known) if self.groups else self._note_mixture(layout, known)
        return False

    def _has_other_blocks(self, event: BlockStored) -> bool:
        """Whether a group besides the main one has longer or shorter blocks: their ends are the main
        group's."""
        other = self.layout is not None and event.block_tokens != self.layout.block_tokens
        return other and event.group != self._main_group

    def _fits_hybrid(self, layout: Layout, known: Layout) -> bool:
        """The main group of a hybrid model stores the end of a prompt as a block of its own, shorter than the
        others, which are the ones that count."""
        if layout.block_tokens > known.block_tokens:
            self.layout = layout
        return layout.block_tokens > known.block_tokens

    def _note_mixture(self, layout: Layout, known: Layout) -> bool:
        self._mixture = f"worker stores blocks of {_in_words(known)} and of {_in_words(layout)}"
        return False

    def _mismatch(self) -> str:
        """In words, why no prompt will match what the worker stores; empty when prompts may."""
        if self._mixture or self.layout in (None, self.expected) or self.expected is None:
            return self._mixture
        stored, prompts = _in_words(self.layout), _in_words(self.expected)
        return f"worker stores blocks of {stored}, prompts are cut into blocks of {prompts}"

    def _seed_of(self, event: BlockStored) -> BlockHash | None:
        """The hash that the first block chains to; None when its parent is unknown."""
        if event.parent_hash is not None:
            return self._block_hash(key_of(event.parent_hash))
        namespace = (event.adapter, event.cache_salt)
        seed = self._seeds.get(namespace)
        if seed is None:
            if len(self._seeds) >= NAMESPACES:
                self._seeds.clear()
            seed = root_seed(self._base_model, adapter=event.adapter, cache_salt=event.cache_salt)
            self._seeds[namespace] = seed
        return seed

    def _block_hash(self, key: Key) -> BlockHash | None:
        for key_map in self._maps.values():
            block_hash = key_map.block_hash(key)
            if block_hash is not None:
                return block_hash
        return self.groups.block_hash(key) if self.groups else None


def _in_words(layout: Layout) -> str:
    size = f"{layout.block_tokens} tokens"
    return f"{size} hashed with the {layout.lookahead_tokens} after them" if layout.lookahead_tokens else size
