"""One worker's publisher: adapter, sequencer and key maps joined. Its events become blocks in the index here.

The order of messages is the sequencer's matter, names of blocks are the key maps', what waits for its parent
is the orphans', the groups of hybrid models besides the main one are the groups'; events are applied here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from indexer.adapters import Adapter, MalformedFrame
from indexer.blocks import TOKEN_BYTES, BlockHash, BlockHashing, Layout, pack_tokens
from indexer.events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch, HashedBlocks, Tier
from indexer.feed_stats import FeedStats
from indexer.groups import Groups
from indexer.keys import Garbage, KeyMap, key_of
from indexer.layouts import LayoutWatch
from indexer.namespaces import Namespaces
from indexer.orphans import Orphans
from indexer.radix import RadixIndex, Slot
from indexer.runs import Key, Tally
from indexer.sequencer import Apply, Forget, Message, Sequencer, Step
from indexer.snapshot import (
    PublisherHeader,
    PublisherSnapshot,
    Section,
    SnapshotError,
    load_section,
    map_sections,
)
from indexer.standing import Standing
from indexer.trust import EXACT, Sign, Trust, judge


class Publisher:
    """What is known of one worker through its events."""

    def __init__(
        self,
        slot: Slot,
        indexes: Mapping[Tier, RadixIndex],
        group_indexes: Mapping[Tier, RadixIndex],
        engine: str,
        adapter: Adapter,
        *,
        base_model: str,
        hashing: BlockHashing,
        expected: Layout | None,
        can_replay: bool,
        dp_rank: int | None,
        tally: Tally,
    ) -> None:
        self.sequencer = Sequencer(can_replay=can_replay)
        self.stats = FeedStats()
        self.garbage: list[Garbage] = []
        """Forgotten entries, for their memory to be given back in slices."""
        self.layouts = LayoutWatch(expected)
        self.orphans = Orphans()
        self.standing = Standing(indexes[Tier.DEVICE], slot)
        self._slot = slot
        self.engine = engine
        self.base_model = base_model
        self._decode = adapter.decode
        self._dp_rank = dp_rank
        self._indexes = indexes
        self._maps = {
            tier: KeyMap(index, slot, tally, keeps_copies=adapter.keeps_copies)
            for tier, index in indexes.items()
        }
        self.groups = Groups(slot, self._maps, indexes, group_indexes, tally)
        self._hashing = hashing
        self._namespaces = Namespaces(hashing, base_model)
        self._num_batches = 0

    @property
    def is_exact(self) -> bool:
        """Whether the trust level is EXACT."""
        return not (self.sequencer.doubt or self.layouts.mismatch or self.standing.is_doubted)

    def trust(self) -> Trust:
        """How far the claims of this worker may be believed now."""
        if self.is_exact and not self.sequencer.missing_history:  # as nearly every decision finds it
            return EXACT
        signs = {
            Sign.SILENT: self.standing.refusal,
            Sign.LAYOUT: self.layouts.mismatch,
            Sign.BLOCKS: self.standing.disbelief,
            Sign.STREAM: self.sequencer.doubt,
        }
        return judge(signs, self.sequencer.missing_history)

    def current_stats(self) -> FeedStats:
        """The counters, brought up to date."""
        counted = self.sequencer.stats
        self.stats.num_gaps = counted.num_gaps
        self.stats.num_replays = counted.num_replays
        self.stats.num_restarts = counted.num_restarts
        self.stats.last_sequence = self.sequencer.last_sequence
        self.stats.num_orphans_dropped = self.orphans.num_dropped
        self.stats.num_blocks = self._indexes[Tier.DEVICE].num_blocks(self._slot)
        self.stats.num_learnt = self.standing.num_learnt
        self.stats.num_learnt_blocks = len(self.standing.learnt)
        return self.stats

    @property
    def maps(self) -> list[KeyMap]:
        """What it holds, by tier and group."""
        return [*self._maps.values(), *self.groups.maps()]

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
        return self.carry_out(steps, (message, batch), is_replay=is_replay)

    def carry_out(
        self,
        steps: list[Step],
        decoded: tuple[Message, EventBatch | None] | None = None,
        *,
        is_replay: bool = False,
    ) -> list[int]:
        """Apply and forget as the sequencer says; returns the numbers to ask a replay from.

        `decoded` is the message at hand with its batch, so that it is not decoded twice.
        """
        replays_from = []
        for step in steps:
            if isinstance(step, Apply):
                at_hand = decoded is not None and decoded[0] is step.message
                batch = decoded[1] if decoded and at_hand else self._read(step.message.payload)
                self._apply(batch, is_replay=is_replay)
            elif isinstance(step, Forget):
                self.layouts.forget()
                self.forget()
                self.standing.begin_anew()
            else:
                replays_from.append(step.from_sequence)
        return replays_from

    def ignore(self, reason: str) -> None:
        """Count something that could not be used."""
        self.stats.ignored[reason] += 1

    def forget(self) -> None:
        """Drop every claim, in every tier."""
        self.orphans.clear()
        self._namespaces.clear()
        self.standing.learnt.clear()
        self.garbage += self.groups.clear()
        for key_map in self._maps.values():
            self.garbage += key_map.clear()

    def depths(self, hashes: Sequence[BlockHash]) -> tuple[int, int, int]:
        """For a hybrid model: how many leading blocks its device supports, and how many more host and disk
        do."""
        return self.groups.depths(hashes, self.layouts.known.block_tokens if self.layouts.known else 1)

    def holds(self, block_hash: BlockHash) -> bool:
        """Whether its events tell of the block, on any tier and in any group."""
        indexes, groups = self._indexes.values(), self.groups.others.values()
        return any(index.holds(self._slot, block_hash) for index in indexes) or any(
            group.holds(block_hash, tuple(Tier)) for group in groups
        )

    def was_reset(self) -> None:
        """The engine says that its cache is empty now, ahead of the event that will tell so."""
        self.stats.num_clears += 1
        self.forget()
        self.standing.was_reset()

    @property
    def may_learn(self) -> bool:
        """Whether reports of cached blocks may stand in for events: where those of the past are missing. What
        a hybrid model's groups support no single block can tell."""
        return bool(self.sequencer.missing_history) and self.is_exact and not self.groups.others

    def truncate(self, hashes: Sequence[BlockHash]) -> int:
        """Drop the claims on these blocks: the engine reported that it does not hold them."""
        num_dropped = self.standing.learnt.discard(hashes)
        num_dropped += sum(key_map.withdraw(hashes) for key_map in self._maps.values())
        self.stats.num_overreports += num_dropped > 0
        return num_dropped

    def snapshot(self, name: str) -> Iterator[Section] | None:
        """What it holds now, to be written by and by; None while there is nothing that could be verified
        later."""
        position, layout = self.sequencer.position, self.layouts.known
        if position is None or layout is None or self.layouts.mismatch or not self._can_be_told:
            return None
        header = PublisherHeader(name, self.engine, self.base_model, *layout, self.groups.main, position)
        copies = [(tier, key_map.copied()) for tier, key_map in self._maps.items() if len(key_map)]
        return chain([header], *(map_sections(tier, copy) for tier, copy in copies))

    def restore(self, snapshot: PublisherSnapshot) -> Iterator[None]:
        """Hold what is in the snapshot, in pieces of about 2 ms; it counts once the engine is verified. To be
        done before the first contact. Raises SnapshotError for what is not this worker's."""
        header = snapshot.header
        if (header.engine, header.base_model) != (self.engine, self.base_model) or not self._can_be_told:
            raise SnapshotError(f"it is of {header.base_model!r} on {header.engine}, hashed as we do")
        for section in snapshot.sections():
            load_section(section, self._maps[section.tier])
            yield
        self.layouts.resume(Layout(header.block_tokens, header.lookahead_tokens))
        self.groups.main = header.group
        self.sequencer.resume(header.position)

    @property
    def _can_be_told(self) -> bool:
        """Not what snapshots have no place for: the groups of hybrid models, and roots for every block."""
        return not self.groups.others and not self._hashing.needs_root

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

    def _apply(self, batch: EventBatch | None, *, is_replay: bool) -> None:
        if batch is None:  # whatever it removed is unknown
            self.ignore("malformed_payload")
            self.forget()
            return
        self.stats.num_events += len(batch.events)
        if batch.ignored:
            self.stats.ignored.update(batch.ignored)
        self._num_batches += 1
        if self.orphans.waiting:
            self.orphans.expire(self._num_batches)
        for event in self.standing.since_reset(batch.events, is_replay=is_replay):
            if isinstance(event, BlockStored):
                self._store(event)
            elif isinstance(event, BlockRemoved):
                self._remove(event)
            elif isinstance(event, AllBlocksCleared):
                self._clear(event)
            else:
                self._take_hashed(event)

    # What the worker tells.

    def _store(self, event: BlockStored) -> None:
        is_described = self._claim(event)
        if self.orphans.waiting and is_described:
            self._adopt_children(event)

    def _take_hashed(self, event: HashedBlocks) -> None:
        key_map = self._maps[Tier.DEVICE]
        if event.is_removal:
            self.stats.num_blocks_removed += key_map.remove_all(event.block_hashes)
        else:
            self.stats.num_blocks_stored += len(event.block_hashes)
            key_map.store(event.block_hashes, event.block_hashes, event.parent_hash)

    def _remove(self, event: BlockRemoved) -> None:
        key_map = self.groups.map_for_removal(event)
        if key_map is None:
            self.ignore("attention_group")
            return
        some_wait = bool(self.orphans.waiting)
        for key in map(key_of, event.block_hashes):
            if self.standing.learnt and self._block_hash(key) is None:
                self.standing.learnt.lose_one()
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
        key_map = self.groups.map_for(event)
        if key_map is None:
            self.ignore("attention_group")
        elif not event.token_ids:
            self._claim_named(event, key_map)
        elif self.layouts.is_known(event) or self._fits_layout(event):
            return self._claim_described(event, key_map)
        elif self.groups.is_main(event.group):
            self.ignore("block_size")
        else:  # another group's blocks may be longer or shorter: their ends are the main group's
            self._claim_named(event, key_map)
        return False

    def _fits_layout(self, event: BlockStored) -> bool:
        is_main = self.groups.is_main(event.group)
        return self.layouts.take(event, is_main=is_main, is_hybrid=bool(self.groups.others))

    def _claim_described(self, event: BlockStored, key_map: KeyMap) -> bool:
        parent = None
        if event.parent_hash is not None:
            needed = key_of(event.parent_hash)
            parent = self._block_hash(needed)
            if parent is None:
                self._let_wait(needed, event)
                return False
        try:
            packed = pack_tokens(event.token_ids)
        except (OverflowError, TypeError):
            self.ignore("token_ids")
            return False
        hashes = self._hashing.chain(
            packed,
            event.block_tokens * TOKEN_BYTES,
            self._namespaces.root(event, parent),
            parent,
            event.extra,
            event.lookahead_tokens * TOKEN_BYTES,
        )
        self.stats.num_blocks_stored += len(hashes)
        keys = list(map(key_of, event.block_hashes))
        key_map.store(keys, hashes, None if event.parent_hash is None else key_of(event.parent_hash))
        self._namespaces.claimed(event, parent, hashes)
        if event.tier is Tier.DEVICE and self.groups.is_main(event.group):
            self.standing.stored(event, hashes)
        return True

    def _claim_named(self, event: BlockStored, key_map: KeyMap) -> None:
        """Offloading tiers and some groups name blocks without their tokens: others described them."""
        for engine_hash in event.block_hashes:
            key = key_of(engine_hash)
            block_hash = self._block_hash(key)
            if block_hash is None:
                self._let_wait(key, replace(event, block_hashes=(engine_hash,), token_ids=()))
            else:
                self.stats.num_blocks_stored += 1
                key_map.store((key,), (block_hash,))

    def _let_wait(self, needed: Key, event: BlockStored) -> None:
        self.stats.num_orphans += 1
        if self.stats.num_blocks_dropped:
            return  # what was given up for want of memory never comes again, and is most likely its parent
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

    def _block_hash(self, key: Key) -> BlockHash | None:
        for key_map in self._maps.values():
            block_hash = key_map.block_hash(key)
            if block_hash is not None:
                return block_hash
        return self.groups.block_hash(key) if self.groups.others else None
