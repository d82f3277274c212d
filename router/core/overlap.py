"""What each worker is believed to hold of a prompt: exact where its events are sound, else our own decisions.

Three sources: the feed (a worker's own KV events), the bridge (what was just sent to a worker with events,
until they tell), and predictions (what was sent to a worker without events, or in bytes, which no engine's
event can confirm). Per worker the larger of feed and bridge counts; predictions stand alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from indexer.adapters import ADAPTERS, Adapter
from indexer.blocks import BlockHash, HashSpace, Layout, Unit
from indexer.byte_blocks import COVERED
from indexer.feed import KvFeed
from indexer.limits import INDEX_BYTES
from indexer.predicted import PredictedIndex
from indexer.radix import OverlapScores
from indexer.trust import Sign, Trust, judge
from policies.types import Slot, Worker
from router.core.pools import Pool, hash_space_of
from router.core.prompt import Prompt
from router.core.usage import Expectation, expected_cached_tokens, lacks_last_block

_PREDICTED = judge({Sign.SILENT: "no KV events are expected from it"})


@dataclass(slots=True)
class Overlap:
    """Leading blocks per slot, in the worker's own blocks; slots without any are absent.

    `host` and `disk` continue what came before. `exact` is what the feed alone says of the device.
    """

    device: dict[Slot, int] = field(default_factory=dict)
    host: dict[Slot, int] = field(default_factory=dict)
    disk: dict[Slot, int] = field(default_factory=dict)
    exact: dict[Slot, int] = field(default_factory=dict)

    def depth(self, slot: Slot) -> int:
        """Leading blocks on any tier."""
        return self.device.get(slot, 0) + self.host.get(slot, 0) + self.disk.get(slot, 0)


NO_OVERLAP = Overlap()
"""Of a request whose prompt is not looked up; not to be changed."""


class Beliefs:
    """Feed, bridge and predictions as one."""

    def __init__(
        self,
        *,
        predicted_ttl: float,
        bridge_ttl: float,
        hashing: str = "kvgate",
        index_bytes: int = INDEX_BYTES,
        adapters: Mapping[str, Adapter] = ADAPTERS,
    ) -> None:
        self.feed = KvFeed(hashing, index_bytes, adapters)
        self._adapters = adapters
        self._bridge = PredictedIndex(bridge_ttl)
        self._predictions = PredictedIndex(predicted_ttl)
        self._slots = 0
        self._publishers = 0  # bitmask of the slots whose workers publish events
        self._refused = 0  # of these, whose events can't be listened to for now

    def add(self, slot: Slot, worker: Worker) -> None:
        """Without an adapter for its engine a worker's events say nothing: it is predicted."""
        self._slots |= 1 << slot
        self._predictions.add_slot(slot, worker.num_blocks)
        if not worker.publishes_events or worker.engine not in self._adapters:
            return
        self._publishers |= 1 << slot
        self._bridge.add_slot(slot, worker.num_blocks)
        self.feed.add_publisher(
            slot,
            engine=worker.engine,
            base_model=worker.base_model,
            block_tokens=hash_space_of(worker).block_tokens,
            can_replay=worker.replays_events,
            dp_rank=worker.dp_rank,
        )

    def remove(self, slot: Slot) -> None:
        """At once for matching; memory is given back by `expire`."""
        self._predictions.drop_slot(slot)
        if self.has_events(slot):
            self._bridge.drop_slot(slot)
            self.feed.remove_publisher(slot)
        self._slots &= ~(1 << slot)
        self._publishers &= ~(1 << slot)
        self._refused &= ~(1 << slot)

    def refuse(self, slot: Slot, reason: str) -> None:
        """The worker's events can't be listened to: our decisions are believed instead. "" ends that."""
        self.feed.refuse(slot, reason)
        self._refused = self._refused & ~(1 << slot) | bool(reason) << slot

    def expect(self, slot: Slot, layout: Layout) -> None:
        """The worker's prompts are cut into other blocks from now on. What its events have taught is in those
        already; what was predicted in the former ones can't be found any more."""
        self.feed.expect(slot, layout)
        self.forget_predictions(slot)

    def is_free(self, slot: Slot) -> bool:
        """Whether nothing of a removed worker is left."""
        return self.feed.is_free(slot) and self._bridge.is_free(slot) and self._predictions.is_free(slot)

    def has_events(self, slot: Slot) -> bool:
        return bool(self._publishers >> slot & 1)

    def trust(self, slot: Slot) -> Trust:
        return self.feed.trust(slot) if self.has_events(slot) else _PREDICTED

    def forget_predictions(self, slot: Slot) -> None:
        """The worker restarted with an empty cache. Its events tell so themselves, our decisions do not."""
        self._predictions.clear(slot)
        if self.has_events(slot):
            self._bridge.clear(slot)

    def match(self, prompt: Prompt, pool: Pool, *, now: float) -> Overlap:
        overlap = Overlap()
        for space, slots in pool.spaces.items():
            if chain := prompt.chains.get(space):
                publishers = slots & self._publishers & ~self._refused if prompt.unit is Unit.TOKENS else 0
                if publishers:
                    self._match_publishers(overlap, chain, publishers, now)
                if predicted := slots & ~publishers:
                    depths, covered = self._predictions.match(chain, predicted, now=now), COVERED[prompt.unit]
                    overlap.device.update({slot: covered[depth] for slot, depth in depths.items()})
        return overlap

    def _match_publishers(self, overlap: Overlap, chain: Sequence[BlockHash], slots: int, now: float) -> None:
        scores = self.feed.overlap(chain, slots)
        overlap.exact.update(scores.device)
        overlap.device.update(scores.device)
        overlap.host.update(scores.host)
        overlap.disk.update(scores.disk)
        for slot, depth in self._bridge.match(chain, slots, now=now).items():
            if depth > scores.device.get(slot, 0):
                _bridge_over(overlap, scores, slot, depth)

    def believe(self, slot: Slot, prompt: Prompt, space: HashSpace, overlap: Overlap, *, now: float) -> None:
        """The prompt was sent to that worker, so its blocks will be there.

        Where the feed shows the whole prompt already there is nothing to bridge.
        """
        chain = prompt.chains.get(space)
        if not chain:
            return
        if overlap.exact.get(slot, 0) < len(chain):
            self._own(slot, prompt.unit).store(slot, chain, now=now, unit=prompt.unit)

    def confirm(self, slot: Slot, unit: Unit, chain: Sequence[BlockHash]) -> None:
        """The worker has begun to answer a request with that prompt: its blocks are there."""
        self._own(slot, unit).confirm(slot, chain)

    def retract(self, slot: Slot, unit: Unit, chain: Sequence[BlockHash]) -> None:
        """An attempt that needed these blocks, the end of a prompt, ended before its answer began.

        What is believed for other reasons stays: it was answered from, or the worker's events tell of it.
        """
        self._own(slot, unit).retract(slot, chain)

    def _own(self, slot: Slot, unit: Unit) -> PredictedIndex:
        """Where our own decisions about prompts of that unit are kept."""
        is_told_of = unit is Unit.TOKENS and self._publishers & ~self._refused & 1 << slot
        return self._bridge if is_told_of else self._predictions

    def withdraw(
        self, slot: Slot, expectation: Expectation, block_tokens: int, reported_tokens: int, *, now: float
    ) -> None:
        """A lone request found less in the worker's cache than its events had promised: the rest goes.

        Not when events have told of a loss since: that explains it, and what they have stored since is there.
        What the request computed anew is there too, so it is bridged. One block less is no sign: dropped, it
        would hide all that the worker holds behind it.
        """
        promised = expectation.exact_blocks
        expected = expected_cached_tokens(promised, expectation.num_tokens, block_tokens)
        if reported_tokens >= expected or lacks_last_block(expected, reported_tokens, block_tokens):
            return
        if self.num_losses(slot) == expectation.num_losses:
            self.feed.truncate(slot, expectation.chain[reported_tokens // block_tokens : promised])
            self._bridge.store(slot, expectation.chain, now=now)
            self._bridge.confirm(slot, expectation.chain)

    def num_losses(self, slot: Slot) -> int:
        """See KvFeed; of a worker without events nothing can be lost."""
        return self.feed.num_losses(slot)

    def num_index_blocks(self, slot: Slot) -> int:
        return self.feed.index.num_blocks(slot)

    def num_predicted_blocks(self, slot: Slot) -> int:
        return self._predictions.num_blocks(slot) + self._bridge.num_blocks(slot)

    def held_blocks(self, slots: Sequence[Slot]) -> list[int]:
        """Of each worker, by all that is known. What is bridged shows up in the feed soon, so the two are not
        added."""
        held = [self._predictions.num_blocks(slot) for slot in slots]
        if self._publishers:
            for row, slot in enumerate(slots):
                if self.has_events(slot):
                    held[row] += max(self.feed.index.num_blocks(slot), self._bridge.num_blocks(slot))
        return held

    def expire(self, *, now: float) -> bool:
        """One slice of clearing away; True when removed workers have left nothing."""
        self._bridge.expire(now=now)
        self._predictions.expire(now=now)
        return self.feed.sweep()

    def check(self) -> None:
        self.feed.check()
        self._bridge.check()
        self._predictions.check()
        assert not self._publishers & ~self._slots, "only live slots publish"
        assert not self._refused & ~self._publishers, "only who publishes is listened to"


def _bridge_over(overlap: Overlap, scores: OverlapScores, slot: Slot, depth: int) -> None:
    """The bridge reaches further than the device's events: host and disk continue only what lies beyond
    it."""
    host_end = scores.device.get(slot, 0) + scores.host.get(slot, 0)
    disk_end = host_end + scores.disk.get(slot, 0)
    overlap.device[slot] = depth
    for tier, left in ((overlap.host, host_end - depth), (overlap.disk, disk_end - max(depth, host_end))):
        if left > 0:
            tier[slot] = left
        else:
            tier.pop(slot, None)
