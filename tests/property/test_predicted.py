"""Predictions against an oracle that remembers when each block was used last."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from indexer.blocks import TOKEN_BYTES, chain_block_hashes, pack_tokens
from indexer.limits import EPOCH_TTL_SHARE
from indexer.predicted import PredictedIndex

TTL = 10.0
EPOCH = TTL / EPOCH_TTL_SHARE
SLOTS = (0, 1)
CAPACITIES = (5, 1000)

slots = st.sampled_from(SLOTS)
prompts = st.lists(st.integers(0, 2), min_size=1, max_size=6).map(
    lambda tokens: chain_block_hashes(pack_tokens(tokens), TOKEN_BYTES, 1)
)


class Predictions(RuleBasedStateMachine):
    """Slot 0 is small, so blocks are evicted there; slot 1 has room for everything."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.index = PredictedIndex(TTL)
        self.used_at: dict[tuple[int, int], float] = {}
        for slot, capacity in zip(SLOTS, CAPACITIES, strict=True):
            self.index.add_slot(slot, capacity)

    def leading(self, slot: int, hashes: list[int], since: float) -> int:
        """Blocks of a prompt that were used after `since`."""
        for depth, block_hash in enumerate(hashes):
            if self.used_at.get((slot, block_hash), -TTL) <= since:
                return depth
        return len(hashes)

    @rule(seconds=st.sampled_from((0.01, EPOCH, 1.0, 4.0)))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(slot=slots, hashes=prompts)
    def store_and_confirm(self, slot: int, hashes: list[int]) -> None:
        self.now += 0.001
        self.index.store(slot, hashes, now=self.now)
        self.index.confirm(slot, hashes)
        self.used_at.update({(slot, block_hash): self.now for block_hash in hashes})
        found = self.index.match(hashes, 1 << slot, now=self.now)
        assert found == {slot: min(len(hashes), CAPACITIES[slot])}, "what was just used is believed"

    @rule(hashes=prompts)
    def match(self, hashes: list[int]) -> None:
        depths = self.index.match(hashes, 0b11, now=self.now)
        for slot in SLOTS:
            assert depths.get(slot, 0) <= self.leading(slot, hashes, self.now - TTL)
        assert depths.get(1, 0) >= self.leading(1, hashes, self.now - TTL + EPOCH)

    @rule()
    def expire(self) -> None:
        self.index.expire(now=self.now)

    @invariant()
    def is_sound(self) -> None:
        self.index.check()


Predictions.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPredictions = Predictions.TestCase
