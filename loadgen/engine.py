"""EngineModel: a continuous-batching engine without hardware, sockets or clock.

It schedules steps as vLLM does, keeps a real prefix cache and emits the KV events that the engine would. The
caller owns time: `start_step(now)` says when the step will end, and `finish_step()` is called then. The mock
worker puts sockets around it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from indexer.events import BlockStored, KvEvent
from loadgen.block_pool import BlockPool
from loadgen.sequences import EngineSequence
from loadgen.step_time import decode_ms, prefill_ms

HASH_SEED = b"kvgate-mock"
"""Seed of every first block: equal prompts have equal hashes on all workers, as in vLLM from 0.29 on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Sizes and speed of a modelled engine; sequences and batched tokens as Dynamo's mocker has them."""

    block_tokens: int = 16
    num_blocks: int = 8192
    max_sequences: int = 256
    max_batched_tokens: int = 8192
    """Tokens computed in one step, decoded ones included."""
    max_model_len: int = 131_072
    speedup: float = 1.0
    """Divides the step times of the published curves."""
    hash_seed: bytes = HASH_SEED

    @property
    def capacity_tokens(self) -> int:
        """One block is reserved, as vLLM's null block is."""
        return (self.num_blocks - 1) * self.block_tokens

    @property
    def context_limit(self) -> int:
        """Tokens that one sequence may have: the model's limit, or what the pool can hold."""
        return min(self.max_model_len, self.capacity_tokens)


@dataclass(slots=True)
class EngineCounters:
    """Totals since the engine started; the two cache counters are in tokens."""

    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    prompt_tokens: int = 0
    computed_prompt_tokens: int = 0
    """Prompt tokens that prefill had to compute, those of preempted sequences again."""
    generation_tokens: int = 0
    preemptions: int = 0
    finished: int = 0
    aborted: int = 0
    steps: int = 0


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Who got a token in this step (`sequence.last_token`), and the KV events that the step publishes."""

    advanced: Sequence[EngineSequence]
    events: Sequence[KvEvent]


class EngineModel:
    """Submit sequences, then alternate `start_step` and `finish_step`; `abort` is allowed at any time."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.counters = EngineCounters()
        self.pool = BlockPool(settings.num_blocks)
        self.slowdown = 1.0
        """Multiplies step times; for a worker that is to be slower than its curve."""
        self._waiting: deque[EngineSequence] = deque()
        self._running: list[EngineSequence] = []
        self._scheduled: list[EngineSequence] = []

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def kv_usage(self) -> float:
        """Share of the blocks that running sequences use; cached ones without a user do not count."""
        return 1.0 - self.pool.num_free / self.pool.num_usable

    def submit(
        self,
        request_id: str,
        prompt: Sequence[int],
        max_tokens: int,
        *,
        adapter: str = "",
        cache_salt: str = "",
    ) -> EngineSequence:
        """Queues a request. `prompt` and `max_tokens` are at least 1 and together within `context_limit`."""
        assert prompt
        assert max_tokens >= 1
        assert len(prompt) + max_tokens <= self.settings.context_limit
        sequence = EngineSequence(
            id=request_id,
            tokens=list(prompt),
            max_tokens=max_tokens,
            block_tokens=self.settings.block_tokens,
            adapter=adapter,
            cache_salt=cache_salt,
            digest=self.settings.hash_seed,
        )
        self.counters.prompt_tokens += sequence.num_prompt_tokens
        self._waiting.append(sequence)
        return sequence

    def abort(self, sequence: EngineSequence) -> None:
        """Drops a request wherever it is; full blocks that it filled stay cached. Finished ones are left
        alone."""
        if sequence.finished:
            return
        sequence.finished = True
        self.counters.aborted += 1
        if sequence in self._waiting:
            self._waiting.remove(sequence)
            return
        self._running.remove(sequence)
        self._release(sequence)

    def reset_prefix_cache(self) -> bool:
        """Clears the cache when nothing runs; the event leaves with the next step, as in vLLM."""
        return self.pool.clear()

    def start_step(self, now: float) -> float | None:
        """Schedules the next step; returns when it ends (seconds), or None when there is nothing to run."""
        budget = self._schedule_running(self.settings.max_batched_tokens)
        self._schedule_waiting(budget)
        if not self._scheduled:
            return None
        return now + self._step_ms() * self.slowdown / self.settings.speedup / 1000.0

    def finish_step(self) -> StepOutput:
        """Ends the scheduled step: whoever has all its tokens computed gets the next one."""
        advanced = []
        any_finished = False
        for sequence in self._scheduled:
            if sequence.finished:  # aborted meanwhile
                continue
            sequence.num_computed += sequence.num_scheduled
            if sequence.num_computed == len(sequence.tokens):
                sequence.generate()
                advanced.append(sequence)
                if sequence.num_generated == sequence.max_tokens:
                    self._finish(sequence)
                    any_finished = True
        if any_finished:
            self._running = [sequence for sequence in self._running if not sequence.finished]
        self._scheduled = []
        self.counters.generation_tokens += len(advanced)
        self.counters.steps += 1
        return StepOutput(advanced, self.pool.take_events())

    def check(self) -> None:
        """Every invariant, O(size)."""
        self.pool.check()
        users: dict[int, int] = {}
        for sequence in self._running:
            assert not sequence.finished
            assert len(sequence.block_ids) * sequence.block_tokens >= sequence.num_computed
            for block_id in sequence.block_ids:
                users[block_id] = users.get(block_id, 0) + 1
        assert self.pool.num_usable - self.pool.num_free == len(users)
        assert not any(sequence.block_ids for sequence in self._waiting)
        assert len(self._running) <= self.settings.max_sequences

    # Scheduling: sequences that run already come first, in the order in which they were admitted.

    def _schedule_running(self, budget: int) -> int:
        """Returns what is left for newcomers: nothing when somebody had to be preempted."""
        position = 0
        preemptions = self.counters.preemptions
        while position < len(self._running) and budget:
            sequence = self._running[position]
            count = min(len(sequence.tokens) - sequence.num_computed, budget)
            if not self._make_room(sequence, count):
                break
            self._schedule(sequence, count)
            budget -= count
            position += 1
        return budget if preemptions == self.counters.preemptions else 0

    def _make_room(self, sequence: EngineSequence, count: int) -> bool:
        """Blocks for `count` more tokens, preempting from the youngest on; False when it had to go itself."""
        missing = self._missing_blocks(sequence, count)
        while missing > self.pool.num_free:
            victim = self._running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        if missing > 0:
            sequence.block_ids += self.pool.allocate(missing)
        return True

    def _schedule_waiting(self, budget: int) -> None:
        while budget and self._waiting and len(self._running) < self.settings.max_sequences:
            if not self._admit(self._waiting[0]):
                return
            sequence = self._waiting.popleft()
            self._running.append(sequence)
            count = min(len(sequence.tokens) - sequence.num_computed, budget)
            self._make_room(sequence, count)
            self._schedule(sequence, count)
            budget -= count

    def _admit(self, sequence: EngineSequence) -> bool:
        """Takes over the cached prefix if the whole sequence fits beside it. One token is always computed."""
        size = sequence.block_tokens
        longest_hit = (len(sequence.tokens) - 1) // size
        cached = self.pool.find_prefix(sequence.hashes[:longest_hit])
        total = -(-len(sequence.tokens) // size)
        if total - len(cached) > self.pool.num_free - self.pool.num_unused(cached):
            return False
        self.pool.reuse(cached)
        sequence.block_ids = cached
        sequence.num_registered = len(cached)
        sequence.num_computed = len(cached) * size
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.num_computed
            self.counters.prefix_cache_queries += sequence.num_prompt_tokens
            self.counters.prefix_cache_hits += sequence.num_computed
        return True

    def _schedule(self, sequence: EngineSequence, count: int) -> None:
        """Blocks that the step fills are findable from now on: another request of this step may use them."""
        sequence.num_scheduled = count
        self._scheduled.append(sequence)
        num_full = (sequence.num_computed + count) // sequence.block_tokens
        if num_full > sequence.num_registered:
            self._register(sequence, num_full)

    def _register(self, sequence: EngineSequence, num_full: int) -> None:
        first, size = sequence.num_registered, sequence.block_tokens
        stored = BlockStored(
            block_hashes=sequence.hashes[first:num_full],
            parent_hash=sequence.hashes[first - 1] if first else None,
            token_ids=sequence.tokens[first * size : num_full * size],
            block_tokens=size,
            adapter=sequence.adapter,
            cache_salt="" if first else sequence.cache_salt,
        )
        self.pool.register(sequence.block_ids[first:num_full], stored)
        sequence.num_registered = num_full

    def _missing_blocks(self, sequence: EngineSequence, count: int) -> int:
        size = sequence.block_tokens
        return -(-(sequence.num_computed + count) // size) - len(sequence.block_ids)

    def _preempt(self, sequence: EngineSequence) -> None:
        """Gives its blocks back; it starts again, ahead of all who wait, with what is then still cached."""
        self._running.remove(sequence)
        self._release(sequence)
        sequence.num_computed = sequence.num_registered = 0
        self._waiting.appendleft(sequence)
        self.counters.preemptions += 1

    def _finish(self, sequence: EngineSequence) -> None:
        sequence.finished = True
        self._release(sequence)
        self.counters.finished += 1

    def _release(self, sequence: EngineSequence) -> None:
        self.pool.release(sequence.block_ids)
        sequence.block_ids = []

    def _step_ms(self) -> float:
        chunks = []
        active_tokens = num_decoders = 0
        for sequence in self._scheduled:
            after = sequence.num_computed + sequence.num_scheduled
            active_tokens += after
            if sequence.num_generated and sequence.num_scheduled == 1:
                num_decoders += 1
            else:
                chunks.append((sequence.num_computed, after))
                self.counters.computed_prompt_tokens += sequence.num_scheduled
        duration = prefill_ms(chunks) if chunks else 0.0
        if num_decoders:
            duration += decode_ms(active_tokens / self.settings.capacity_tokens)
        return duration
