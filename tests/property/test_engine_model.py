"""The engine model under any interleaving of submissions, steps, aborts and resets.

The reference listens to the events alone, as a router does, and must know at every step's end what the pool
holds and what a new request finds cached.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from indexer.events import BlockStored
from loadgen.block_pool import BlockPool
from tests.support.engines import copies_after, small_model

BLOCK = 4
# Prompts of few families, so that prefixes are shared often.
prompts = st.tuples(st.integers(1, 3), st.integers(0, 20), st.integers(1, 3), st.integers(1, 20)).map(
    lambda parts: [parts[0]] * parts[1] + [10 + parts[2]] * parts[3]
)


class EngineMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.model = small_model(max_sequences=4)
        self.copies = Counter()
        self.parents = {}
        self.live = []
        self.held = []
        self.now = 0.0
        self.tokens_due = 0

    @rule(prompt=prompts, max_tokens=st.integers(1, 12), salt=st.sampled_from(["", "s"]))
    def submit(self, prompt, max_tokens, salt):
        self.live.append(self.model.submit("r", prompt, max_tokens, cache_salt=salt))

    @rule(prompt=prompts, share=st.floats(0, 1))
    def submit_transferred(self, prompt, share):
        sequence = self.model.sequence("r", prompt, 3)
        sequence.transferred_tokens = int(share * len(prompt))
        self.model.enqueue(sequence)
        self.live.append(sequence)

    @rule(prompt=prompts)
    def submit_handed_over(self, prompt):
        sequence = self.model.sequence("r", prompt, 1)
        sequence.is_handed_over = True
        self.model.enqueue(sequence)
        self.live.append(sequence)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data):
        sequence = data.draw(st.sampled_from(self.held))
        self.held.remove(sequence)
        assert self.model.release(sequence)
        assert not self.model.release(sequence)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), within_step=st.booleans())
    def abort(self, data, within_step):
        sequence = data.draw(st.sampled_from(self.live))
        started = within_step and self.model.start_step(self.now) is not None
        self.model.abort(sequence)
        self.live.remove(sequence)
        if started:
            self._finish_step()

    @rule()
    def step(self):
        newcomers = [sequence for sequence in self.live if sequence.cached_tokens is None]
        ends_at = self.model.start_step(self.now)
        if ends_at is None:
            assert self.held or not self.live, "whoever waits is served when nobody runs"
            return
        assert ends_at > self.now
        self.now = ends_at
        self._finish_step()
        for sequence in newcomers:
            self._check_hit(sequence)

    @rule()
    def reset(self):
        running = self.model.num_running + self.model.num_held
        done = self.model.reset_prefix_cache()
        assert done == (not running)

    @invariant()
    def counted(self):
        self.model.check()
        assert self.model.num_running + self.model.num_waiting == len(self.live)
        assert self.model.num_held == len(self.held)

    @invariant()
    def no_more_copies_than_blocks(self):
        assert sum(self.copies.values()) <= self.model.pool.num_usable

    def teardown(self):
        while self.live:
            self._release_all()
            self.step()
        self._release_all()
        assert self.model.kv_usage == 0.0
        counters = self.model.counters
        assert counters.prefix_cache_hits <= counters.prefix_cache_queries

    def _release_all(self):
        for sequence in self.held:
            self.model.release(sequence)
        self.held.clear()

    def _finish_step(self):
        output = self.model.finish_step()
        for event in output.events:
            if isinstance(event, BlockStored):
                self._check_stored(event)
        self.copies = copies_after(output.events, self.copies)
        self._check_copies(self.model.pool)
        for sequence in output.advanced:
            assert len(sequence.tokens) == sequence.num_prompt_tokens + sequence.num_generated
            assert sequence.finished == (sequence.num_generated == sequence.max_tokens)
        self.live = [sequence for sequence in self.live if not sequence.finished]
        self.held += [sequence for sequence in output.finished if sequence.is_handed_over]

    def _check_stored(self, event):
        assert len(event.token_ids) == BLOCK * len(event.block_hashes)
        chain = [event.parent_hash, *event.block_hashes]
        for i, (parent, block_hash) in enumerate(pairwise(chain)):
            content = (parent, tuple(event.token_ids[i * BLOCK : (i + 1) * BLOCK]))
            assert self.parents.setdefault(block_hash, content) == content, "one name, one prefix"

    def _check_copies(self, pool: BlockPool):
        assert pool.num_cached == len(self.copies)
        assert all(pool.find_prefix([block_hash]) for block_hash in self.copies)

    def _check_hit(self, sequence):
        """Cached is a whole number of blocks, and never the whole prompt."""
        if sequence.cached_tokens is not None and not sequence.transferred_tokens:
            assert sequence.cached_tokens % BLOCK == 0
            assert sequence.cached_tokens <= (sequence.num_prompt_tokens - 1) // BLOCK * BLOCK


EngineMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestEngineModel = EngineMachine.TestCase


def test_a_lone_request_finds_exactly_what_the_events_have_told():
    """The rule by which a router predicts `cached_tokens`, over a long run with evictions."""
    model = small_model()
    copies = Counter()
    for number in range(400):
        prompt = [number % 3] * (number % 21) + [9] * (number % 13) + [number % 5] * (1 + number % 7)
        sequence = model.submit("r", prompt, 1 + number % 4)
        held = 0
        while held < len(sequence.hashes) and copies[sequence.hashes[held]]:
            held += 1
        events = []
        while model.start_step(0.0) is not None:
            events += model.finish_step().events
        copies = copies_after(events, copies)
        assert sequence.cached_tokens == min(held, (len(prompt) - 1) // BLOCK) * BLOCK
