"""What a prompt would take on a worker as it stands, by the formulas of its engine.

For judging a decision afterwards: the way that was taken has a measured time, the other one only this.
Without noise, and as if nobody came later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from indexer.blocks import BlockHash
from loadgen.engine import EngineModel
from loadgen.sim.worker import SimWorker
from loadgen.step_time import published_curves
from loadgen.transfer import TransferModel


@dataclass(frozen=True, slots=True)
class PendingPrompt:
    """Tokens of a prompt, and how many of them need not be computed."""

    num_tokens: int
    num_held: int

    @property
    def num_new(self) -> int:
        return self.num_tokens - self.num_held

    @property
    def num_squares(self) -> int:
        return self.num_tokens**2 - self.num_held**2


def held_tokens(engine: EngineModel, chain: Sequence[BlockHash]) -> int:
    """Leading prompt tokens that are in its cache."""
    return len(engine.pool.find_prefix(chain)) * engine.settings.block_tokens


def first_token_seconds(worker: SimWorker, num_tokens: int, chain: Sequence[BlockHash], now: float) -> float:
    """From now to the first token of a prompt that is computed there, behind the prompts that wait."""
    held = min(held_tokens(worker.engine, chain), num_tokens - 1)
    prompts = [*_pending(worker), PendingPrompt(num_tokens, held)]
    return _rest_of_step(worker, now) + _steps_ms(worker.engine, prompts) / 1000


def stall_seconds(worker: SimWorker, num_tokens: int, chain: Sequence[BlockHash]) -> float:
    """What the streams there lose together while it computes such a prompt."""
    engine = worker.engine
    held = min(held_tokens(engine, chain), num_tokens - 1)
    times = engine.settings.step_time or published_curves(engine.settings.capacity_tokens)
    own_ms = times.prefill_ms(num_tokens - held, num_tokens**2 - held**2) / engine.settings.speedup
    return len(engine.decoding()) * own_ms / 1000


def next_token_seconds(worker: SimWorker, now: float) -> float:
    """From now to the first token of a prompt that is there already: the rest of this step, and one more."""
    return _rest_of_step(worker, now) + _decode_ms(worker.engine, 1) / 1000


def handed_over_seconds(
    prefill: SimWorker,
    decode: SimWorker,
    network: TransferModel,
    num_tokens: int,
    chain: Sequence[BlockHash],
    now: float,
) -> float:
    """From now to the first token by way of that prefill worker, behind what both ports carry already."""
    computed = first_token_seconds(prefill, num_tokens, chain, now)
    port_wait = max(0.0, max(prefill.port.free_at, decode.port.free_at) - (now + computed))
    lacking = max(0, num_tokens - held_tokens(decode.engine, chain))
    return computed + port_wait + network.seconds(lacking) + next_token_seconds(decode, now)


def _pending(worker: SimWorker) -> Iterator[PendingPrompt]:
    """Prompts that are not computed when the step in progress ends; what is transferred is no work."""
    for sequence in worker.requests:
        if sequence.num_generated or sequence.transferred_tokens:
            continue
        done = sequence.num_computed + sequence.num_scheduled
        if not done:
            done = min(held_tokens(worker.engine, sequence.hashes), sequence.num_prompt_tokens - 1)
        if done < sequence.num_prompt_tokens:
            yield PendingPrompt(sequence.num_prompt_tokens, done)


def _steps_ms(engine: EngineModel, prompts: Sequence[PendingPrompt]) -> float:
    """All of them in chunks, as many tokens a step as fit beside the streams, each of which gets a token."""
    settings, num_streams = engine.settings, len(engine.decoding())
    times = settings.step_time or published_curves(settings.capacity_tokens)
    num_new = sum(prompt.num_new for prompt in prompts)
    num_steps = ceil(num_new / max(1, settings.max_batched_tokens - num_streams))
    prefill = times.prefill_ms(num_new, sum(prompt.num_squares for prompt in prompts))
    prefill += (num_steps - 1) * times.prefill_constant
    streams = num_steps * _decode_ms(engine, 0) if num_streams else num_steps * _constant_ms(engine)
    return prefill / settings.speedup + streams


def _decode_ms(engine: EngineModel, num_more: int) -> float:
    """Of one step of its streams and `num_more`."""
    settings, streams = engine.settings, engine.decoding()
    times = settings.step_time or published_curves(settings.capacity_tokens)
    tokens = sum(sequence.num_tokens for sequence in streams)
    return _constant_ms(engine) + times.decode_ms(len(streams) + num_more, tokens) / settings.speedup


def _constant_ms(engine: EngineModel) -> float:
    times = engine.settings.step_time
    return times.step_constant / engine.settings.speedup if times else 0.0


def _rest_of_step(worker: SimWorker, now: float) -> float:
    """Of one with a prompt in it, until its end. A run of decode steps ends with the one in progress when
    somebody comes: half a step on average."""
    if worker.is_idle:
        return 0.0
    rest = max(0.0, worker.step_ends_at - now)
    if any(sequence.num_scheduled and not sequence.num_generated for sequence in worker.requests):
        return rest
    return min(rest, _decode_ms(worker.engine, 0) / 2000)
