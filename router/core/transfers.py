"""How long KV takes from a prefill worker to a decode worker, learnt from hand-overs; and what a prompt would
take either way. Milliseconds; `now` is seconds.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from policies.engine_time import PrefillTime, StepTime, num_chunks
from policies.types import Worker
from router.core.learning import Shape, Vector
from router.core.limits import (
    BATCHED_TOKENS,
    OUTLIER_FACTOR,
    STALL_WEIGHT,
    TRANSFER_BUSY_WEIGHT,
    TRANSFER_FIRST_SAMPLES,
    TRANSFER_GRACE_SECONDS,
    TRANSFER_MEMORY,
    TRANSFER_PRIOR,
    TRANSFER_SAMPLE_MS,
    TRANSFER_SECONDS,
    TRANSFER_SLOW,
)

Link = tuple[str, str]
"""What transfers are learnt for: a base model, whose KV has its size, and the protocol that carries it."""


def link_of(worker: Worker) -> Link:
    """To a decode worker."""
    return worker.base_model, worker.transfer.protocol if worker.transfer else ""


@dataclass(slots=True, eq=False)
class Received:
    """What a decode worker is to receive. `began_at`: when the prompt was computed, or is foretold to be;
    None where neither is known."""

    tokens: float
    link: Link
    began_at: float | None = None


@dataclass(slots=True, eq=False)
class _Learnt:
    """Of one link. `tried_at`: when the last hand-over began, `shown_at`: when one last showed its time."""

    tried_at: float
    shown_at: float
    shape: Shape = field(default_factory=lambda: Shape(TRANSFER_PRIOR, TRANSFER_MEMORY))
    num_samples: int = 0

    def left(self, now: float) -> float:
        """How much of it still holds. A hand-over under way stands for it until it shows otherwise: a network
        that was slow is tried again with one prompt, not with all that come meanwhile."""
        return math.exp((max(self.tried_at, self.shown_at) - now) / TRANSFER_SECONDS)


class TransferTimes:
    """One line for each link: a base, and so much for each token that the decode worker lacks.

    The prior is quick, so that hand-overs are tried; what they teach relaxes to it, so that a network that
    was slow is tried again after some minutes.
    """

    def __init__(self) -> None:
        self._links: dict[Link, _Learnt] = {}
        self._under_way: dict[Link, dict[Received, None]] = {}
        """Whose prompt is computed, oldest first; until the first token, or the end without one."""

    def set_off(self, received: Received) -> None:
        """The prefill worker is done with it, and its first token will show that it has arrived."""
        self._under_way.setdefault(received.link, {})[received] = None

    def ended(self, received: Received | None) -> None:
        """It has arrived, or never will. Again: no effect."""
        if received is not None and (others := self._under_way.get(received.link)) is not None:
            others.pop(received, None)
            if not others:
                del self._under_way[received.link]

    def began(self, received: Received, now: float) -> None:
        """A hand-over was decided."""
        if (learnt := self._links.get(received.link)) is not None:
            learnt.tried_at = now

    def observe(self, received: Received, step_ms: float, now: float, *, was_calm: bool = True) -> None:
        """The first token came, after a decode step of `step_ms`. `was_calm`: no prefill of the decode
        worker's own stood in the way."""
        learnt = self._links.setdefault(received.link, _Learnt(now, now))
        known = self.of(received.link, received.tokens, now)
        assert received.began_at is not None
        taken = min(max(0.0, (now - received.began_at) * 1000 - step_ms), _most(received, known, learnt))
        weight = (1.0 if was_calm else TRANSFER_BUSY_WEIGHT) / (TRANSFER_SAMPLE_MS + known) ** 2
        learnt.shape.fade(math.exp((learnt.shown_at - now) / TRANSFER_SECONDS))
        learnt.shape.observe((1.0, received.tokens, 0.0), taken, weight)
        learnt.num_samples += 1
        learnt.shown_at = now

    def of(self, link: Link, tokens: float, now: float) -> float:
        """Milliseconds for so many tokens."""
        prior = _line(TRANSFER_PRIOR, tokens)
        if (learnt := self._links.get(link)) is None:
            return prior * self._overdue(link, now)
        left = learnt.left(now)
        return left * _line(learnt.shape.coefficients, tokens) + (1 - left) * prior

    def _overdue(self, link: Link, now: float) -> float:
        """How many times the prior the oldest one under way has taken at least, with some grace for what it
        may wait for besides: a slow network shows before the first one has crossed it."""
        if (others := self._under_way.get(link)) is None:
            return 1.0
        oldest = next(iter(others))
        assert oldest.began_at is not None
        taken = (now - oldest.began_at - TRANSFER_GRACE_SECONDS) * 1000
        return max(1.0, taken / _line(TRANSFER_PRIOR, oldest.tokens))

    def keep(self, base_models: Collection[str]) -> None:
        """Forgets the links of models that nobody serves any more."""
        self._links = {link: learnt for link, learnt in self._links.items() if link[0] in base_models}


def _line(coefficients: Vector, tokens: float) -> float:
    base, token, _ = coefficients
    return base + token * tokens


def _most(received: Received, known: float, learnt: _Learnt) -> float:
    """A sample beyond is a pause and no network; until some were seen a slow one is believed at once."""
    most = OUTLIER_FACTOR * (known + TRANSFER_SAMPLE_MS)
    if learnt.num_samples < TRANSFER_FIRST_SAMPLES:
        return max(most, _line(TRANSFER_SLOW, received.tokens))
    return most


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

    def joining_ms(self, num_tokens: float) -> float:
        """Until a prompt that is there has its first token: half of the step under way, and its own."""
        own = self.step.of(self.num_decoding + 1, self.decoding_tokens + num_tokens)
        return self.step_ms / 2 + own


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One worker, and how many tokens of the prompt it need not compute."""

    times: WorkerTimes
    cached_tokens: float


def forecast(num_tokens: int, decode: Side, prefill: Side, transfer_ms: float) -> dict[str, float]:
    """Both ways, term by term.

    local = wait + prefill + steps of the streams in between + what those streams lose, weighed as the latency
    policy weighs it; remote = wait + prefill there + transfer + what is left by then of the queue here, where
    it joins a step + that step.
    """
    here, there = decode.times, prefill.times
    here_ms, there_ms = _prefill_ms(num_tokens, decode), _prefill_ms(num_tokens, prefill)
    new = num_tokens - min(decode.cached_tokens, max(0, num_tokens - 1))
    terms = {
        "local_wait": here.wait_ms,
        "local_prefill": here_ms,
        "local_steps": (num_chunks(new, BATCHED_TOKENS) + 0.5) * here.step_ms,
        "local_streams": STALL_WEIGHT * here.num_decoding * here_ms,
        "remote_wait": there.wait_ms,
        "remote_prefill": there_ms,
        "remote_transfer": transfer_ms,
        "remote_queue": max(0.0, here.wait_ms - there.wait_ms - there_ms - transfer_ms),
        "remote_step": here.joining_ms(num_tokens),
    }
    for side in ("local", "remote"):
        terms[side] = sum(value for name, value in terms.items() if name.startswith(f"{side}_"))
    return terms


def _prefill_ms(num_tokens: int, side: Side) -> float:
    """At least one token is always computed."""
    return side.times.prefill.of(num_tokens, min(side.cached_tokens, max(0, num_tokens - 1)))
