"""Predictions against an oracle that remembers when each block was used last."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from indexer.blocks import TOKEN_BYTES, Unit, chain_block_hashes, pack_tokens
from indexer.byte_blocks import COVERED, chain_byte_blocks, depth_within
from indexer.limits import EPOCH_TTL_SHARE
from indexer.predicted import PredictedIndex

TTL = 10.0
EPOCH = TTL / EPOCH_TTL_SHARE
SLOTS = (0, 1)
CAPACITIES = (45, 3000)

slots = st.sampled_from(SLOTS)
tokens = st.lists(st.integers(0, 2), min_size=1, max_size=6)
long_tokens = st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(0, 2), st.integers(1, 60)).map(
    lambda runs: [runs[0]] * runs[1] + [runs[2]] * runs[3]
)
prompts = st.one_of(
    tokens.map(lambda ids: (Unit.TOKENS, chain_block_hashes(pack_tokens(ids), TOKEN_BYTES, 1))),
    long_tokens.map(lambda ids: (Unit.BYTES, chain_byte_blocks(pack_tokens(ids), TOKEN_BYTES, 2))),
)


class Predictions(RuleBasedStateMachine):
    """Slot 0 is small, so blocks are evicted there; slot 1 has room for everything."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.index = PredictedIndex(TTL)
        self.used_at: dict[tuple[int, int], float] = {}
        self.widths: dict[int, int] = {}
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

    @rule(slot=slots, prompt=prompts)
    def store_and_confirm(self, slot: int, prompt: tuple[Unit, list[int]]) -> None:
        self.now += 0.001
        unit, hashes = prompt
        self.index.store(slot, hashes, now=self.now, unit=unit)
        self.index.confirm(slot, hashes)
        self.used_at.update({(slot, block_hash): self.now for block_hash in hashes})
        found = self.index.match(hashes, 1 << slot, now=self.now)
        room = depth_within(CAPACITIES[slot], unit)
        assert found == {slot: min(len(hashes), room)}, "what was just used is believed"
        self.widths.update(zip(hashes, (end - start for start, end in pairwise(COVERED[unit])), strict=False))

    @rule(prompt=prompts)
    def match(self, prompt: tuple[Unit, list[int]]) -> None:
        _, hashes = prompt
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
        for slot, capacity in zip(SLOTS, CAPACITIES, strict=True):
            assert self.index.num_blocks(slot) <= capacity
        ever_used = {block_hash for slot, block_hash in self.used_at if slot == 1}
        assert self.index.num_blocks(1) <= sum(map(self.widths.__getitem__, ever_used))


Predictions.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPredictions = Predictions.TestCase
