"""What bears on a publisher's claims besides its stream: blocks learnt from reports, a reset whose event is
still to come, a finding that its blocks are not those of our prompts, and samples for finding out why.

Blocks in the index are the publisher's own matter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from indexer.blocks import BlockHash
from indexer.events import AllBlocksCleared, AnyEvent, BlockStored
from indexer.learnt import LearntBlocks
from indexer.limits import CLEAR_ECHO_MESSAGES, STORED_ROOTS_KEPT
from indexer.parity import StoredRoot
from indexer.radix import RadixIndex, Slot


class Standing:
    """Of one publisher."""

    __slots__ = ("_clear_due", "_index", "_roots", "_slot", "disbelief", "learnt", "num_learnt", "refusal")

    def __init__(self, index: RadixIndex, slot: Slot) -> None:
        """`index`: of the device."""
        self._index = index
        self._slot = slot
        self.learnt = LearntBlocks()
        self.num_learnt = 0
        self.disbelief = ""
        """In words, why its blocks match no prompt; "" while they do or nobody knows."""
        self.refusal = ""
        """In words, why its events can't even be listened to; "" when they are."""
        self._clear_due = 0  # live messages within which a reset that is known already may be announced
        self._roots: deque[StoredRoot] | None = None

    @property
    def is_doubted(self) -> bool:
        return bool(self.disbelief or self.refusal)

    # Reports

    def learn(self, hashes: Sequence[BlockHash]) -> int:
        """The engine reported the leading blocks of a prompt, these, as cached. Those that no event told of
        are believed from now on; returns how many are new."""
        num_new = self.learnt.learn([each for each in hashes if not self._index.holds(self._slot, each)])
        self.num_learnt += num_new
        return num_new

    def depth(self, hashes: Sequence[BlockHash], start: int) -> int:
        """Leading blocks of a prompt, `start` of which its events tell of, with those that were learnt."""
        while start < len(hashes) and (
            hashes[start] in self.learnt or self._index.holds(self._slot, hashes[start])
        ):
            start += 1
        return start

    # A reset that the engine has confirmed

    def was_reset(self) -> None:
        """Its cache is empty now. The event that tells so leaves with the engine's next step; what comes
        before that event is of the time before the reset, in a replay too."""
        self.learnt.clear()
        self._clear_due = CLEAR_ECHO_MESSAGES

    def begin_anew(self) -> None:
        """What was known of the publisher's history is dropped."""
        self.learnt.clear()
        self._clear_due = 0

    def since_reset(self, events: Sequence[AnyEvent], *, is_replay: bool) -> Sequence[AnyEvent]:
        """The events of one message that are of the time after a reset that is known already."""
        if not self._clear_due:
            return events
        for position, event in enumerate(events):
            if isinstance(event, AllBlocksCleared):
                self._clear_due = 0
                return events[position:]
        if not is_replay:
            self._clear_due -= 1
        return ()

    # Samples

    def sample_roots(self, is_on: bool) -> None:
        """Keep the beginnings of the prompts that are stored from now on, or no longer."""
        self._roots = deque(maxlen=STORED_ROOTS_KEPT) if is_on else None

    @property
    def roots(self) -> Sequence[StoredRoot]:
        return tuple(self._roots or ())

    def stored(self, event: BlockStored, hashes: Sequence[BlockHash]) -> None:
        """The event's blocks are in the index under these hashes."""
        if self.learnt:
            self.learnt.discard(hashes)
        if self._roots is not None and event.parent_hash is None:
            beginning = tuple(event.token_ids[: event.block_tokens + event.lookahead_tokens + 1])
            self._roots.append(StoredRoot(event.adapter, event.cache_salt, beginning))
