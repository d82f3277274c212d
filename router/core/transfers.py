"""How long KV takes from a prefill worker to a decode worker, learnt from hand-overs; and what a prompt would
take either way. Milliseconds; `now` is seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from policies.engine_time import PrefillTime, StepTime, num_chunks
from router.core.learning import Shape
from router.core.limits import (
    BATCHED_TOKENS,
    OUTLIER_FACTOR,
    STALL_WEIGHT,
    TRANSFER_MEMORY,
    TRANSFER_PRIOR,
    TRANSFER_SAMPLE_MS,
    TRANSFER_SECONDS,
)


@dataclass(slots=True)
class Received:
    """What a decode worker is to receive. `began_at`: when the prompt was computed, as far as it is known."""

    tokens: float
    protocol: str
    began_at: float


class TransferTimes:
    """One line for each hand-over protocol: a base, and so much for each token that the decode worker lacks.

    The prior is quick, so that hand-overs are tried; what they teach relaxes to it, so that a network that
    was slow is tried again after some minutes.
    """

    def __init__(self) -> None:
        self._shapes: dict[str, Shape] = {}
        self._seen_at: dict[str, float] = {}

    def observe(self, received: Received, step_ms: float, now: float) -> None:
        """The first token came, after a decode step of `step_ms`."""
        taken = (now - received.began_at) * 1000 - step_ms
        x = 1.0, received.tokens, 0.0
        known = self.of(received.protocol, received.tokens, now)
        taken = min(max(0.0, taken), OUTLIER_FACTOR * known + OUTLIER_FACTOR * TRANSFER_SAMPLE_MS)
        weight = 1 / (TRANSFER_SAMPLE_MS + known)
        shape = self._shapes.setdefault(received.protocol, Shape(TRANSFER_PRIOR, TRANSFER_MEMORY))
        shape.observe(x, taken, weight * weight)
        self._seen_at[received.protocol] = now

    def of(self, protocol: str, tokens: float, now: float) -> float:
        """Milliseconds for so many tokens."""
        prior_base, prior_token, _ = TRANSFER_PRIOR
        prior = prior_base + prior_token * tokens
        if protocol not in self._shapes:
            return prior
        base, token, _ = self._shapes[protocol].coefficients
        left = math.exp((self._seen_at[protocol] - now) / TRANSFER_SECONDS)
        return left * (base + token * tokens) + (1 - left) * prior


class WorkerTimes(NamedTuple):
    """What is known of one worker's time: until its queue is empty, and what its work takes."""

    wait_ms: float
    prefill: PrefillTime
    step: StepTime
    num_decoding: int
    decoding_tokens: int

    @property
    def step_ms(self) -> float:
        """Of its streams as they are."""
        return self.step.of(self.num_decoding, self.decoding_tokens) if self.num_decoding else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One worker, and how many tokens of the prompt it need not compute."""

    times: WorkerTimes
    cached_tokens: float


def forecast(num_tokens: int, decode: Side, prefill: Side, transfer_ms: float) -> dict[str, float]:
    """Both ways, term by term.

    local = wait + prefill + steps of the streams in between + what those streams lose, weighed as the latency
    policy weighs it; remote = wait + prefill there + transfer + the streams' step that the newcomer joins.
    """
    here, there = decode.times, prefill.times
    here_ms = _prefill_ms(num_tokens, decode)
    new = num_tokens - min(decode.cached_tokens, max(0, num_tokens - 1))
    terms = {
        "local_wait": here.wait_ms,
        "local_prefill": here_ms,
        "local_steps": (num_chunks(new, BATCHED_TOKENS) + 0.5) * here.step_ms,
        "local_streams": STALL_WEIGHT * here.num_decoding * here_ms,
        "remote_wait": there.wait_ms,
        "remote_prefill": _prefill_ms(num_tokens, prefill),
        "remote_transfer": transfer_ms,
        "remote_step": here.step_ms,
    }
    for side in ("local", "remote"):
        terms[side] = sum(value for name, value in terms.items() if name.startswith(f"{side}_"))
    return terms


def _prefill_ms(num_tokens: int, side: Side) -> float:
    """At least one token is always computed."""
    return side.times.prefill.of(num_tokens, min(side.cached_tokens, max(0, num_tokens - 1)))
