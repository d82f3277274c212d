"""EngineModel: a continuous-batching engine without hardware, sockets or clock.

It schedules steps as vLLM does, keeps a real prefix cache and emits the KV events that the engine would. The
caller owns time: `start_step(now)` says when the step will end, and `finish_step()` is called then. The
simulator puts a virtual clock around it, the mock worker (as `TokenEngine`, with words) sockets.

Between two changes of the batch all decoders go on alike, so they are counted and not visited: such steps can
be taken many at a time, and one costs the same however many sequences run.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, exp, sqrt

from indexer.events import KvEvent
from loadgen.block_pool import BlockPool
from loadgen.decoders import Decoders
from loadgen.engine_counters import EngineCounters
from loadgen.sequences import EngineSequence
from loadgen.step_time import StepTime, published_curves


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Sizes and speed of a modelled engine; sequences and batched tokens as Dynamo's mocker has them."""

    block_tokens: int = 16
    num_blocks: int = 8192
    max_sequences: int = 256
    max_batched_tokens: int = 8192
    """Tokens computed in one step, decoded ones included."""
    max_model_len: int = 131_072
    step_time: StepTime | None = None
    """None: the curves that Dynamo published, for this capacity."""
    speedup: float = 1.0
    """Divides the step times."""
    watermark: float = 0.0
    """Share of the blocks that a prompt must leave free to be admitted."""
    noise: float = 0.0
    """Spread of a step's time: the standard deviation of its logarithm."""

    @property
    def capacity_tokens(self) -> int:
        """One block is reserved, as vLLM's null block is."""
        return (self.num_blocks - 1) * self.block_tokens

    @property
    def context_limit(self) -> int:
        """Tokens that one sequence may have: the model's limit, or what the pool can hold."""
        reserve = int(self.watermark * (self.num_blocks - 1))
        return min(self.max_model_len, (self.num_blocks - 1 - reserve) * self.block_tokens)


@dataclass(slots=True)
class StepOutput:
    """Who got its first token in this step and who its last, and the KV events that the step publishes. Made
    for every step, so not frozen: each field of a frozen dataclass is set by a call."""

    started: Sequence[EngineSequence]
    finished: Sequence[EngineSequence]
    events: Sequence[KvEvent]


class EngineModel:
    """Submit sequences, then alternate `start_step` and `finish_step`; `abort` is allowed at any time."""

    def __init__(self, settings: EngineSettings, rng: random.Random | None = None) -> None:
        """`rng` is needed where the settings have noise."""
        self.settings = settings
        self.counters = EngineCounters()
        self.pool = BlockPool(settings.num_blocks)
        self.slowdown = 1.0
        """Multiplies step times; for a worker that is to be slower than its curve."""
        self._rng = rng
        self._step_time = settings.step_time or published_curves(settings.capacity_tokens)
        self._reserve = int(settings.watermark * self.pool.num_usable)
        self._waiting: deque[EngineSequence] = deque()
        # Running sequences in the order of their admission: first all that decode, then those whose prompts
        # are being computed, of which only the last may be left with a part of its prompt.
        self._decoders = Decoders()
        self._prefilling: list[EngineSequence] = []
        # Finished ones whose blocks another engine has not fetched yet.
        self._held: set[EngineSequence] = set()
        # The step, or the run of decode steps, in progress.
        self._chunks: list[EngineSequence] = []
        self._span = 0
        self._started_at = 0.0
        self._factor = 1.0
        self._ends_at = 0.0

    @property
    def num_running(self) -> int:
        return len(self._decoders) + len(self._prefilling)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_held(self) -> int:
        """Finished sequences whose blocks are kept for another engine."""
        return len(self._held)

    @property
    def kv_usage(self) -> float:
        """Share of the blocks that running and held sequences use; what is only cached does not count."""
        return 1.0 - self.pool.num_free / self.pool.num_usable

    def enqueue(self, sequence: EngineSequence) -> None:
        """Queues a request. Prompt and output are at least one token, together within `context_limit`."""
        assert sequence.num_prompt_tokens >= 1
        assert sequence.max_tokens >= 1
        assert sequence.num_prompt_tokens + sequence.max_tokens <= self.settings.context_limit
        self.counters.prompt_tokens += sequence.num_prompt_tokens
        self._waiting.append(sequence)

    def abort(self, sequence: EngineSequence) -> None:
        """Drops a request wherever it is; full blocks that it filled stay cached. Finished ones are left
        alone."""
        if sequence.finished:
            return
        self.counters.aborted += 1
        if sequence in self._waiting:
            self._waiting.remove(sequence)
        else:
            self._leave(sequence)
        sequence.finished = True

    def release(self, sequence: EngineSequence) -> bool:
        """Frees the blocks of a finished sequence that was handed over; False when they are gone already."""
        if sequence not in self._held:
            return False
        self._held.remove(sequence)
        self._free(sequence)
        return True

    def reset_prefix_cache(self) -> bool:
        """Clears the cache when nothing runs; the event leaves with the next step, as in vLLM."""
        return self.pool.clear()

    def start_step(self, now: float, max_steps: int = 1) -> float | None:
        """Schedules the next step; returns when it ends (seconds), or None when there is nothing to run.

        With `max_steps` above 1 it may be a run of steps, as long as they only decode and nobody begins, ends
        or needs a block.
        """
        self._chunks = []
        preemptions = self.counters.preemptions
        if self._decoders.needs_blocks():
            self._grow_decoders()
        budget = self.settings.max_batched_tokens - len(self._decoders)
        if self._prefilling and budget:
            budget -= self._continue_prefill(budget)
        has_preempted = preemptions < self.counters.preemptions
        if self._waiting and not has_preempted:  # else newcomers wait for the next step
            self._schedule_waiting(budget)
        if not self._chunks and not self._decoders:
            return None
        is_single = bool(self._chunks) or has_preempted or max_steps == 1
        self._span = 1 if is_single else min(max_steps, self._decoders.steps_alike())
        self._factor = self.slowdown / self.settings.speedup / 1000.0 * self._noise_factor()
        self._started_at = now
        self._ends_at = now + self._step_ms(self._span) * self._factor
        return self._ends_at

    def shorten(self, now: float) -> float | None:
        """Somebody came: ends a run of steps with the one in progress; returns when, or None if nothing
        changes."""
        if self._span <= 1 or now >= self._ends_at:
            return None
        elapsed = max(0.0, now - self._started_at) / self._factor
        steps = max(1, ceil(self._span * elapsed / self._step_ms(self._span)))
        while steps > 1 and self._step_ms(steps - 1) >= elapsed:
            steps -= 1
        while steps < self._span and self._step_ms(steps) < elapsed:
            steps += 1
        if steps >= self._span:
            return None
        self._span = steps
        self._ends_at = self._started_at + self._step_ms(steps) * self._factor
        return self._ends_at

    def finish_step(self) -> StepOutput:
        """Ends the scheduled step: whoever has all its tokens computed gets the next one."""
        steps, counters = self._span, self.counters
        counters.steps += steps
        counters.busy_seconds += self._ends_at - self._started_at
        counters.generation_tokens += self._decoders.advance(steps)
        self._span = 0
        finished: list[EngineSequence] = []
        while (sequence := self._decoders.next_finished()) is not None:
            self._finish(sequence)
            finished.append(sequence)
        started = self._finish_chunks(finished)
        return StepOutput(started, finished, self.pool.take_events())

    def decoding(self) -> list[EngineSequence]:
        """Sequences that get a token in every step, their numbers up to date, in the order of their
        admission."""
        sequences = list(self._decoders)
        for sequence in sequences:
            self._decoders.settle(sequence)
        return sequences

    def check(self) -> None:
        """Every invariant, O(size)."""
        self.pool.check()
        self._decoders.check()
        users: dict[int, int] = {}
        running = [*self.decoding(), *self._prefilling]
        for sequence in running:
            assert not sequence.finished
            assert len(sequence.block_ids) * sequence.block_tokens >= sequence.num_computed
            assert sequence.num_generated <= sequence.max_tokens
        assert all(sequence.finished for sequence in self._held)
        for sequence in (*running, *self._held):
            for block_id in sequence.block_ids:
                users[block_id] = users.get(block_id, 0) + 1
        assert self.pool.num_usable - self.pool.num_free == len(users)
        assert not any(sequence.block_ids for sequence in self._waiting)
        assert len(running) <= self.settings.max_sequences

    # Scheduling: sequences that run already come first, in the order in which they were admitted.

    def _grow_decoders(self) -> None:
        """Blocks for the next token of those that have filled theirs."""
        while (sequence := self._decoders.next_full()) is not None:
            self._register(sequence)
            self._make_room(sequence, 1)

    def _continue_prefill(self, budget: int) -> int:
        """Returns how much of it was used."""
        (sequence,) = self._prefilling
        count = min(sequence.num_tokens - sequence.num_computed, budget)
        if self._make_room(sequence, count):
            self._schedule(sequence, count)
        return count

    def _make_room(self, sequence: EngineSequence, count: int) -> bool:
        """Blocks for `count` more tokens, preempting from the youngest on; False when it had to go itself."""
        missing = -(-(sequence.num_computed + count) // sequence.block_tokens) - len(sequence.block_ids)
        while missing > self.pool.num_free:
            victim = self._prefilling[-1] if self._prefilling else self._decoders.youngest
            self._preempt(victim)
            if victim is sequence:
                return False
        if missing > 0:
            sequence.block_ids += self.pool.allocate(missing)
        return True

    def _schedule_waiting(self, budget: int) -> None:
        most = min(self.settings.max_sequences, self.settings.max_batched_tokens)
        while budget and self._waiting and self.num_running < most:
            if not self._admit(self._waiting[0]):
                return
            sequence = self._waiting.popleft()
            self._prefilling.append(sequence)
            count = min(sequence.num_tokens - sequence.num_computed, budget)
            self._make_room(sequence, count)
            self._schedule(sequence, count)
            budget -= count

    def _admit(self, sequence: EngineSequence) -> bool:
        """Takes over the cached prefix, and what was transferred behind it, if the whole sequence fits beside
        it. One token is always computed."""
        size = sequence.block_tokens
        longest_hit = (sequence.num_tokens - 1) // size
        cached = self.pool.find_prefix(sequence.hashes[:longest_hit])
        missing = -(-sequence.num_tokens // size) - len(cached)
        if missing > self.pool.num_free - self.pool.num_unused(cached) - self._reserve:
            return False
        self.pool.reuse(cached)
        sequence.block_ids = cached
        sequence.num_registered = len(cached)
        held = len(cached) * size
        sequence.num_computed = max(held, min(sequence.transferred_tokens, sequence.num_tokens - 1))
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.num_computed
            self.counters.prefix_cache_queries += sequence.num_prompt_tokens
            self.counters.prefix_cache_hits += held
            self.counters.transferred_prompt_tokens += sequence.num_computed - held
        return True

    def _schedule(self, sequence: EngineSequence, count: int) -> None:
        """Blocks that the step fills are findable from now on: another request of this step may use them."""
        sequence.num_scheduled = count
        self._chunks.append(sequence)
        self._register(sequence, count)

    def _register(self, sequence: EngineSequence, count: int = 0) -> None:
        """Makes those of its full blocks findable whose content is known, `count` tokens further."""
        first = sequence.num_registered
        num_full = (sequence.num_computed + count) // sequence.block_tokens
        end = min(num_full, len(sequence.hashes))
        if end > first:
            self.pool.register(sequence.block_ids[first:end], sequence.stored(first, end))
            sequence.num_registered = end

    def _step_ms(self, steps: int) -> float:
        num_decoders = len(self._decoders)
        active_tokens = self._decoders.num_tokens + num_decoders
        times = self._step_time
        duration = times.step_constant * steps
        if self._chunks:
            num_tokens = num_squares = 0
            for sequence in self._chunks:
                after = sequence.num_computed + sequence.num_scheduled
                active_tokens += after
                if sequence.transferred_tokens and sequence.num_scheduled == 1:  # as a decoder's token
                    num_decoders += 1
                    continue
                num_tokens += sequence.num_scheduled
                num_squares += after * after - sequence.num_computed * sequence.num_computed
            if num_tokens:
                duration += times.prefill_ms(num_tokens, num_squares)
        if num_decoders:
            duration += times.decode_ms(num_decoders, active_tokens, steps)
        return duration

    def _noise_factor(self) -> float:
        """Log-normal around a mean of 1; over a run of steps their noises average out."""
        spread = self.settings.noise
        if not spread:
            return 1.0
        assert self._rng is not None
        if self._span > 1:
            spread /= sqrt(self._span)
        return exp(spread * (self._rng.gauss(0.0, 1.0) - spread / 2))

    # The end of a step.

    def _finish_chunks(self, finished: list[EngineSequence]) -> list[EngineSequence]:
        """Those that got their first token."""
        started: list[EngineSequence] = []
        if not self._chunks:
            return started
        left = []
        for sequence in self._chunks:
            if sequence.finished:  # aborted meanwhile
                continue
            sequence.num_computed += sequence.num_scheduled
            self.counters.computed_prompt_tokens += sequence.num_scheduled
            if sequence.num_computed < sequence.num_tokens:
                left.append(sequence)
                continue
            sequence.num_generated += 1
            self.counters.generation_tokens += 1
            if sequence.num_generated == 1:
                started.append(sequence)
            if sequence.num_generated == sequence.max_tokens:
                self._finish(sequence)
                finished.append(sequence)
            else:
                self._decoders.join(sequence)
        self._prefilling = left
        return started

    def _finish(self, sequence: EngineSequence) -> None:
        self._stop(sequence)
        if sequence.is_handed_over:
            self._held.add(sequence)
        else:
            self._free(sequence)
        sequence.finished = True
        self.counters.finished += 1

    def _preempt(self, sequence: EngineSequence) -> None:
        """Gives its blocks back; it starts again, ahead of all who wait, with what is then still cached."""
        self._leave(sequence)
        sequence.num_computed = sequence.num_registered = sequence.transferred_tokens = 0
        self._waiting.appendleft(sequence)
        self.counters.preemptions += 1

    def _leave(self, sequence: EngineSequence) -> None:
        """It runs no more. What it has computed stays cached."""
        self._stop(sequence)
        self._free(sequence)

    def _stop(self, sequence: EngineSequence) -> None:
        if sequence in self._decoders:
            self._decoders.leave(sequence)
            self._register(sequence)
        elif sequence in self._prefilling:
            self._prefilling.remove(sequence)

    def _free(self, sequence: EngineSequence) -> None:
        self.pool.release(sequence.block_ids)
        sequence.block_ids = []
