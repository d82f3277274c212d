"""The decoding sequences of a modelled engine, counted instead of visited.

Each gets one token in every step, so all that changes between two of their joinings and leavings is the
number of the step. When one will have its last token, and when it will need another block, is known from the
moment when it joins.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from loadgen.sequences import EngineSequence

_Due = tuple[int, int, EngineSequence]
"""At which step, how many had joined before, who. It counts only while the sequence still says the same."""


class Decoders:
    """In the order in which they joined."""

    def __init__(self) -> None:
        self.step = 0
        """Steps so far."""
        self.num_tokens = 0
        """Computed tokens of all of them."""
        self._sequences: dict[EngineSequence, None] = {}
        self._num_joined = 0
        self._finishes: list[_Due] = []
        self._growths: list[_Due] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __contains__(self, sequence: EngineSequence) -> bool:
        return sequence in self._sequences

    def __iter__(self) -> Iterator[EngineSequence]:
        return iter(self._sequences)

    @property
    def youngest(self) -> EngineSequence:
        return next(reversed(self._sequences))

    def join(self, sequence: EngineSequence) -> None:
        """Its prompt is computed and its first token (or the first anew) generated."""
        self._sequences[sequence] = None
        self.num_tokens += sequence.num_computed
        self._num_joined += 1
        step = sequence.settled_at = self.step
        sequence.finishes_at = step + sequence.max_tokens - sequence.num_generated
        sequence.grows_at = step + len(sequence.block_ids) * sequence.block_tokens - sequence.num_computed
        heappush(self._finishes, (sequence.finishes_at, self._num_joined, sequence))
        heappush(self._growths, (sequence.grows_at, self._num_joined, sequence))

    def leave(self, sequence: EngineSequence) -> None:
        """Finished, preempted or aborted; its numbers are brought up to date."""
        self.settle(sequence)
        del self._sequences[sequence]
        self.num_tokens -= sequence.num_computed

    def settle(self, sequence: EngineSequence) -> None:
        """Brings its numbers up to the last step."""
        steps = self.step - sequence.settled_at
        sequence.num_generated += steps
        sequence.num_computed += steps
        sequence.settled_at = self.step

    def advance(self, steps: int) -> int:
        """So many more tokens for each; returns how many that are."""
        num_tokens = steps * len(self._sequences)
        self.num_tokens += num_tokens
        self.step += steps
        return num_tokens

    def next_finished(self) -> EngineSequence | None:
        """One that has all its tokens and has not left."""
        while self._finishes and self._finishes[0][0] <= self.step:
            due, _order, sequence = heappop(self._finishes)
            if sequence in self._sequences and sequence.finishes_at == due:
                return sequence
        return None

    def needs_blocks(self) -> bool:
        """Whether somebody may need one more block for its next token."""
        return bool(self._growths) and self._growths[0][0] <= self.step

    def next_full(self) -> EngineSequence | None:
        """One, settled, that needs one more block for its next token; it is taken to get that."""
        while self.needs_blocks():
            due, order, sequence = heappop(self._growths)
            if sequence in self._sequences and sequence.grows_at == due:
                self.settle(sequence)
                sequence.grows_at = due + sequence.block_tokens
                heappush(self._growths, (sequence.grows_at, order, sequence))
                return sequence
        return None

    def steps_alike(self) -> int:
        """How many steps from now on nobody finishes and nobody needs a block."""
        here, finishes, growths = self._sequences, self._finishes, self._growths
        while (finish := finishes[0])[2] not in here or finish[2].finishes_at != finish[0]:
            heappop(finishes)
        while (growth := growths[0])[2] not in here or growth[2].grows_at != growth[0]:
            heappop(growths)
        return min(finish[0], growth[0]) - self.step

    def check(self) -> None:
        """Every invariant, O(size)."""
        for sequence in self._sequences:
            self.settle(sequence)
            assert sequence.num_computed == sequence.num_tokens - 1
            assert sequence.num_generated < sequence.max_tokens
        assert self.num_tokens == sum(sequence.num_computed for sequence in self._sequences)
