"""The feed: every publisher's messages in, one index out, as one step without I/O.

The shell (sockets) reports what it hears and carries out the replays that come back as commands. Only a
worker whose trust is EXACT contributes to overlap.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from indexer.adapters import ADAPTERS, Adapter
from indexer.blocks import HASHINGS, BlockHash, Layout
from indexer.budget import MemoryBudget
from indexer.events import Tier
from indexer.feed_stats import FeedStats
from indexer.keys import Garbage
from indexer.limits import EVICTION_BLOCKS, INDEX_BYTES, INDEX_SHARDS, SWEEP_BLOCKS
from indexer.parity import StoredRoot
from indexer.publisher import Publisher
from indexer.radix import OverlapScores, RadixIndex, Slot
from indexer.sequencer import Step
from indexer.snapshot import PublisherSnapshot, SnapshotWriter
from indexer.trust import Sign, Trust, judge

__all__ = ["FeedStats", "KvFeed", "RequestReplay"]


@dataclass(frozen=True, slots=True)
class RequestReplay:
    """Command: ask this worker's engine for its messages from a number on.

    Carrying it out ends any replay of that worker that still runs: nothing of that one may be handed in
    later.
    """

    slot: Slot
    from_sequence: int


class KvFeed:
    """The exact index and what feeds it. `index` is the device tier."""

    def __init__(
        self,
        hashing: str = "kvgate",
        max_bytes: int = INDEX_BYTES,
        adapters: Mapping[str, Adapter] = ADAPTERS,
    ) -> None:
        """`hashing`: a row of HASHINGS, which prompts must be hashed by too. `max_bytes`: of index and engine
        hashes; what does not fit is forgotten, as `budget` says. `adapters`: by engine, who reads its
        events."""
        self._hashing = HASHINGS[hashing]
        self._adapters = adapters
        self._indexes = {tier: RadixIndex() for tier in Tier}
        self.index = self._indexes[Tier.DEVICE]
        self._group_indexes = {tier: RadixIndex() for tier in Tier}
        self.budget = MemoryBudget(max_bytes, (*self._indexes.values(), *self._group_indexes.values()))
        self._publishers: dict[Slot, Publisher] = {}
        self._compact_at = 0
        self._exact_slots = 0
        self._hybrid_slots = 0
        self._learnt_slots = 0
        self._garbage: list[Garbage] = []

    def add_publisher(
        self,
        slot: Slot,
        *,
        engine: str,
        base_model: str,
        block_tokens: int | None,
        can_replay: bool,
        dp_rank: int | None = None,
        lookahead_tokens: int = 0,
    ) -> None:
        """A worker whose events will come. `block_tokens` and `lookahead_tokens` are those of the prompts
        that it will be matched with, as its engine said; None where it did not. While its blocks differ it
        is degraded: see `layout` and `expect`.

        `dp_rank`, when given, is the only rank whose batches are taken. Raises KeyError for an engine without
        an adapter.
        """
        self._publishers[slot] = Publisher(
            slot,
            self._indexes,
            self._group_indexes,
            engine,
            self._adapters[engine],
            base_model=base_model,
            hashing=self._hashing,
            expected=None if block_tokens is None else Layout(block_tokens, lookahead_tokens),
            can_replay=can_replay,
            dp_rank=dp_rank,
            tally=self.budget.tally,
        )

    def layout(self, slot: Slot) -> Layout | None:
        """How the worker cuts its blocks, as its device's events show; None before the first of them."""
        publisher = self._publishers.get(slot)
        return publisher.layouts.known if publisher else None

    def expect(self, slot: Slot, layout: Layout) -> None:
        """From now on the worker is matched with prompts cut like this. What it holds stays: blocks are
        hashed as the worker cuts them, whatever was expected."""
        self._publishers[slot].layouts.expect(layout)
        self._finish_step(slot, [])

    def remove_publisher(self, slot: Slot) -> None:
        """The worker is gone: so are its blocks for every query; their memory is swept later."""
        publisher = self._publishers.pop(slot, None)
        if publisher is not None:
            publisher.forget()
            self._garbage += publisher.garbage
        self._exact_slots &= ~(1 << slot)
        self._hybrid_slots &= ~(1 << slot)
        self._learnt_slots &= ~(1 << slot)

    def connected(self, slot: Slot) -> list[RequestReplay]:
        """The event socket has a connection, for the first time or again."""
        return self._carry_out(slot, self._publishers[slot].sequencer.connected())

    def disconnected(self, slot: Slot) -> None:
        """The event socket lost its connection."""
        self._carry_out(slot, self._publishers[slot].sequencer.disconnected())

    def receive(self, slot: Slot, sequence: int, payload: bytes) -> list[RequestReplay]:
        """A published message. About 1 us for a block of 16 tokens."""
        replays_from = self._publishers[slot].receive(sequence, payload, is_replay=False)
        return self._finish_step(slot, replays_from)

    def receive_replay(self, slot: Slot, sequence: int, payload: bytes) -> list[RequestReplay]:
        """A message of the replay that was asked for last."""
        replays_from = self._publishers[slot].receive(sequence, payload, is_replay=True)
        return self._finish_step(slot, replays_from)

    def replay_ended(self, slot: Slot) -> list[RequestReplay]:
        """The replay's end marker came."""
        return self._carry_out(slot, self._publishers[slot].sequencer.replay_ended())

    def replay_failed(self, slot: Slot, reason: str) -> list[RequestReplay]:
        """The replay broke off or its end marker never came."""
        return self._carry_out(slot, self._publishers[slot].sequencer.replay_failed(reason))

    def malformed(self, slot: Slot, reason: str) -> None:
        """The socket brought something that is no message."""
        self._publishers[slot].ignore(reason)

    def overlap(self, hashes: Sequence[BlockHash], candidates: int) -> OverlapScores:
        """Leading prompt blocks that each candidate (bitmask of slots) holds, by tier."""
        exact = candidates & self._exact_slots
        if exact & self._hybrid_slots:
            return self._overlap_of_hybrids(hashes, exact)
        device = self.index.match(hashes, exact)
        if learnt := exact & self._learnt_slots:
            self._extend_by_learnt(device, hashes, learnt)
        host = self._indexes[Tier.HOST].extend(hashes, exact, device)
        disk = self._indexes[Tier.DISK].extend(
            hashes,
            exact,
            {slot: device.get(slot, 0) + host.get(slot, 0) for slot in device.keys() | host.keys()},
        )
        return OverlapScores(device, host, disk)

    def _overlap_of_hybrids(self, hashes: Sequence[BlockHash], exact: int) -> OverlapScores:
        """The same where some of the workers serve a hybrid model."""
        others = self.overlap(hashes, exact & ~self._hybrid_slots)
        columns = dict(others.device), dict(others.host), dict(others.disk)
        for slot, publisher in self._publishers.items():
            if exact & self._hybrid_slots & 1 << slot:
                for column, depth in zip(columns, publisher.depths(hashes), strict=True):
                    if depth:
                        column[slot] = depth
        return OverlapScores(*columns)

    def truncate(self, slot: Slot, hashes: Sequence[BlockHash]) -> int:
        """Drop a worker's claims on these blocks, which its engine reported as not held; returns how many."""
        publisher = self._publishers.get(slot)
        return publisher.truncate(hashes) if publisher else 0

    def learn(self, slot: Slot, hashes: Sequence[BlockHash]) -> int:
        """The engine of an exact worker reported these leading blocks of a prompt as cached: where events of
        the past are missing it is believed to hold them. Returns how many are new."""
        publisher = self._publishers.get(slot)
        num_learnt = publisher.standing.learn(hashes) if publisher and publisher.may_learn else 0
        if num_learnt:
            self._learnt_slots |= 1 << slot
        return num_learnt

    def reset(self, slot: Slot) -> None:
        """The engine has confirmed that its cache is empty. Its event tells so with its next step only, and
        will not clear what was stored since."""
        if publisher := self._publishers.get(slot):
            publisher.was_reset()
            self._finish_step(slot, [])

    def disbelieve(self, slot: Slot, reason: str) -> None:
        """The worker's blocks match none of our prompts, and why; "" when they do. Meanwhile it is degraded,
        and its events are taken in all the same."""
        if publisher := self._publishers.get(slot):
            publisher.standing.disbelief = reason
            self._finish_step(slot, [])

    def refuse(self, slot: Slot, reason: str) -> None:
        """The worker's event endpoint can't be opened, and why; "" once it is open.
        Until then the worker is PREDICTED."""
        if publisher := self._publishers.get(slot):
            publisher.standing.refusal = reason
            self._finish_step(slot, [])

    def sample_roots(self, slot: Slot, is_on: bool) -> None:
        """Keep the beginnings of the prompts that the worker stores from now on, or no longer."""
        if publisher := self._publishers.get(slot):
            publisher.standing.sample_roots(is_on)

    def roots(self, slot: Slot) -> Sequence[StoredRoot]:
        """Those that were kept, the oldest first."""
        publisher = self._publishers.get(slot)
        return publisher.standing.roots if publisher else ()

    def holds(self, slot: Slot, block_hash: BlockHash) -> bool:
        """Whether the worker's events tell of the block, wherever it keeps it; trust does not matter."""
        publisher = self._publishers.get(slot)
        return publisher is not None and publisher.holds(block_hash)

    def is_sound(self, slot: Slot) -> bool:
        """Whether no event of the worker is known to be missing; false for one without a publisher."""
        publisher = self._publishers.get(slot)
        return publisher is not None and not publisher.sequencer.doubt

    def missing_history(self, slot: Slot) -> str:
        """In words, what of the worker's past is unknown; "" when all is known."""
        publisher = self._publishers.get(slot)
        return publisher.sequencer.missing_history if publisher else ""

    def trust(self, slot: Slot) -> Trust:
        """How far the worker's overlap may be believed. PREDICTED for one without a publisher."""
        publisher = self._publishers.get(slot)
        return publisher.trust() if publisher else judge({Sign.SILENT: "publishes no events"})

    def stats(self, slot: Slot) -> FeedStats:
        """Counters of a worker's publisher; all zero for one without."""
        publisher = self._publishers.get(slot)
        return publisher.current_stats() if publisher else FeedStats()

    def num_losses(self, slot: Slot) -> int:
        """How often the worker's events have told so far that something is no longer there; 0 for one without
        a publisher."""
        if (publisher := self._publishers.get(slot)) is None:
            return 0
        told = publisher.stats
        return told.num_blocks_removed + told.num_clears + publisher.sequencer.stats.num_restarts

    def snapshot(self, names: Mapping[Slot, str]) -> Iterator[bytes]:
        """What the publishers hold, under these names, in pieces. Messages may be taken in between two of
        them: each publisher is copied in one step (30 ms a million blocks) and written later."""
        writer = SnapshotWriter()
        yield writer.begin()
        for slot, name in names.items():
            publisher = self._publishers.get(slot)
            for section in (publisher and publisher.snapshot(name)) or ():
                yield writer.section(section)
        yield writer.end()

    def restore(self, slot: Slot, snapshot: PublisherSnapshot) -> Generator[None, None, None]:
        """Begin with what a snapshot knows of this worker, in pieces of about 2 ms; see Publisher.restore.

        When it is not carried to its end, nothing of it is kept.
        """
        publisher = self._publishers[slot]
        try:
            for _ in publisher.restore(snapshot):
                self._finish_step(slot, [])
                yield
        finally:
            if self._publishers.get(slot) is publisher:
                if publisher.sequencer.position is None:
                    publisher.forget()
                self._finish_step(slot, [])

    def dump(self, names: Mapping[Slot, str]) -> Iterator[list[tuple[Tier, BlockHash, list[str]]]]:
        """Every block with the names of those who claim it, whatever their trust, in pieces of a 256th of the
        index: by tier, then in an order of hashes that depends on nothing else."""
        for tier, index in self._indexes.items():
            for shard in range(INDEX_SHARDS):
                claims = (
                    (tier, block_hash, sorted(names[slot] for slot in slots if slot in names))
                    for block_hash, slots in index.holders(shard)
                )
                yield [claim for claim in claims if claim[2]]

    @property
    def num_bytes(self) -> int:
        """Memory in use, by the most that entries come to."""
        return self.budget.num_bytes

    def sweep(self) -> bool:
        """Give back memory of what was forgotten, one slice of about 1 ms; True when nothing is left."""
        self._compact()
        if self._garbage:
            self.budget.let_go(self._garbage.pop())
            return False
        indexes = (*self._indexes.values(), *self._group_indexes.values())
        unswept = [index for index in indexes if not index.sweep(SWEEP_BLOCKS)]
        return not unswept

    def is_free(self, slot: Slot) -> bool:
        """Whether nothing of a removed worker is left, so that its slot may be given to another."""
        return slot not in self._publishers and all(index.is_free(slot) for index in self._indexes.values())

    def check(self) -> None:
        """Assert every invariant; O(size)."""
        for index in (*self._indexes.values(), *self._group_indexes.values()):
            index.check()
        maps = [key_map for publisher in self._publishers.values() for key_map in publisher.maps]
        num_keys = sum(map(len, maps)) + sum(len(garbage.names) for garbage in self._garbage)
        assert self.budget.tally.num_keys == num_keys, "every engine hash is counted, garbage included"
        for slot, publisher in self._publishers.items():
            publisher.check()
            assert bool(self._exact_slots >> slot & 1) == publisher.is_exact, "only exact workers contribute"

    def _extend_by_learnt(self, device: dict[Slot, int], hashes: Sequence[BlockHash], slots: int) -> None:
        for slot, publisher in self._publishers.items():
            if slots >> slot & 1 and (depth := publisher.standing.depth(hashes, device.get(slot, 0))):
                device[slot] = depth

    def _carry_out(self, slot: Slot, steps: list[Step]) -> list[RequestReplay]:
        return self._finish_step(slot, self._publishers[slot].carry_out(steps))

    def _compact(self) -> None:
        """One shard of each index, and one of each map of the next publisher."""
        for index in (*self._indexes.values(), *self._group_indexes.values()):
            index.compact()
        if self._publishers:
            self._compact_at = (self._compact_at + 1) % len(self._publishers)
            for key_map in next(islice(self._publishers.values(), self._compact_at, None)).maps:
                key_map.compact()

    def _make_room(self) -> None:
        """What waits to be swept goes first, then the least useful blocks of the largest share."""
        while excess := self.budget.excess_blocks:
            if not self.sweep():
                continue
            shares = ((key_map, payer) for payer in self._publishers.values() for key_map in payer.maps)
            largest, payer = max(shares, key=lambda share: len(share[0]))
            num_dropped = largest.drop_oldest(min(excess, EVICTION_BLOCKS))
            payer.stats.num_blocks_dropped += num_dropped
            if not num_dropped:
                return

    def _finish_step(self, slot: Slot, replays_from: list[int]) -> list[RequestReplay]:
        publisher = self._publishers[slot]
        if publisher.is_exact != bool(self._exact_slots >> slot & 1):
            self._exact_slots ^= 1 << slot
        if bool(publisher.groups.others) != bool(self._hybrid_slots >> slot & 1):
            self._hybrid_slots ^= 1 << slot
        if publisher.garbage:
            self._garbage += publisher.garbage
            publisher.garbage = []
        if self.budget.excess_blocks:
            self._make_room()
        return [RequestReplay(slot, from_sequence) for from_sequence in replays_from]
