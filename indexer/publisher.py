"""One worker's publisher: adapter, sequencer and key maps joined. Its events become blocks in the index here.

The order of messages is the sequencer's matter, names of blocks are the key maps'; events are applied here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from indexer.adapters import Adapter, MalformedFrame
from indexer.blocks import TOKEN_BYTES, BlockHash, Layout, chain_block_hashes, pack_tokens, root_seed
from indexer.events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch, Tier
from indexer.keys import Key, KeyMap, key_of
from indexer.limits import NAMESPACES
from indexer.radix import RadixIndex, Slot
from indexer.sequencer import Apply, Forget, Message, Sequencer, Step
from indexer.trust import Trust, TrustLevel


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
        decode: Adapter,
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
        self._slot = slot
        self._decode = decode
        self._base_model = base_model
        self._dp_rank = dp_rank
        self._indexes = indexes
        self._maps = {tier: KeyMap(index, slot) for tier, index in indexes.items()}
        self._seeds: dict[tuple[str, str], BlockHash] = {}
        self._group: int | None = None  # the first main attention group seen; others would count blocks twice
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
        self._group = None
        for key_map in self._maps.values():
            self.garbage += key_map.clear()

    def truncate(self, hashes: Sequence[BlockHash]) -> int:
        """Drop the claims on these blocks: the engine reported that it does not hold them."""
        num_dropped = sum(index.truncate(self._slot, hashes) for index in self._indexes.values())
        self.stats.num_overreports += num_dropped > 0
        return num_dropped

    def check(self) -> None:
        """Assert every invariant; O(size)."""
        for key_map in self._maps.values():
            key_map.check()

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
        for event in batch.events:
            if isinstance(event, BlockStored):
                self._store(event)
            elif isinstance(event, BlockRemoved):
                self._remove(event)
            else:
                self._clear(event)

    def _store(self, event: BlockStored) -> None:
        if self._group is None:
            self._group = event.group
        if not self._is_main_group(event.group):
            return
        if not event.token_ids:
            self._store_named(event)
            return
        if not self._fits_layout(event):
            self.ignore("block_size")
            return
        seed = self._seed_of(event)
        if seed is None:
            self.stats.num_orphans += 1
            return
        try:
            packed = pack_tokens(event.token_ids)
        except (OverflowError, TypeError):
            self.ignore("token_ids")
            return
        hashes = chain_block_hashes(packed, event.block_tokens * TOKEN_BYTES, seed, event.extra)
        keys = map(key_of, event.block_hashes)
        self.stats.num_blocks_stored += len(hashes)
        self._maps[event.tier].store(keys, hashes)

    def _store_named(self, event: BlockStored) -> None:
        """Offloading tiers name blocks without their tokens: they are those that some tier holds now."""
        for engine_hash in event.block_hashes:
            key = key_of(engine_hash)
            block_hash = self._block_hash(key)
            if block_hash is None:
                self.stats.num_orphans += 1
            else:
                self.stats.num_blocks_stored += 1
                self._maps[event.tier].store((key,), (block_hash,))

    def _remove(self, event: BlockRemoved) -> None:
        if not self._is_main_group(event.group):
            return
        remove = self._maps[event.tier].remove
        for engine_hash in event.block_hashes:
            self.stats.num_blocks_removed += remove(key_of(engine_hash))

    def _clear(self, _event: AllBlocksCleared) -> None:
        self.stats.num_clears += 1
        self.forget()

    def _is_main_group(self, group: int) -> bool:
        if group == self._group:
            return True
        self.ignore("attention_group")
        return False

    def _fits_layout(self, event: BlockStored) -> bool:
        """Whether the event's blocks are cut like the others. On the device two kinds of cuts are too many;
        another tier may cut as it likes, but then no prompt will match."""
        layout = self.layout or self.expected
        if event.tier is Tier.DEVICE and not self.layout:
            layout = self.layout = Layout(event.block_tokens)
        if layout is None or event.block_tokens == layout.block_tokens:
            return True
        if event.tier is Tier.DEVICE:
            self._mixture = (
                f"worker stores blocks of {layout.block_tokens} and of {event.block_tokens} tokens"
            )
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
        return None


def _in_words(layout: Layout) -> str:
    size = f"{layout.block_tokens} tokens"
    return f"{size} hashed with the {layout.lookahead_tokens} after them" if layout.lookahead_tokens else size
