"""A synthetic workload with the shape of the Mooncake conversation trace.

The figures were taken from the first 8,000 requests of that trace (kvcache-ai/Mooncake, FAST '25): every
request begins with one shared block, about a third are next turns of earlier conversations, a few repeat part
of an earlier prompt. Requests have the form of a trace, so both are replayed by the same code.
"""

from __future__ import annotations

import heapq
import math
import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from loadgen.traces import BLOCK_TOKENS, TraceRequest

REQUESTS_PER_SECOND = 3.284
"""Mean rate of the trace: 8,000 requests in 2,436 s."""
ARRIVAL_VARIANCE = 2.25
"""Squared coefficient of variation of the gaps: from the spread of requests per 10 s (p10 22, p90 44, mean
33)."""

FIRST_INPUT_QUANTILES = (
    (0.0, 891), (0.1, 906), (0.2, 1133), (0.3, 1887), (0.4, 4181), (0.5, 5686), (0.6, 7937), (0.7, 11_234),
    (0.8, 16_428), (0.9, 26_093), (0.95, 39_687), (0.98, 70_280), (0.99, 92_455), (1.0, 124_847),
)  # fmt: skip
"""Prompt tokens of requests that begin something new: (share, at most this many), straight lines between."""
INPUT_TOKENS_MAX = 125_000
"""The longest prompt of the trace has 124,847 tokens."""

CONTINUES_AFTER_TURN = (0.30, 0.42, 0.50)
"""Share of conversations that have a next turn after turn 1, 2, and later. Seen in the trace: 0.25, 0.37,
0.55 (5,477 firsts, 1,345 seconds, 500, 265, 141, ...); turns too short to fill a block are not seen there as
such."""
PAUSE_LOG_MEAN, PAUSE_LOG_SD = math.log(123.0), 1.02
"""Seconds from one turn to the next: p10 42, p50 123, p90 453."""
PAUSE_REQUESTS = 8000
"""Length of the trace in which those pauses lie; in a shorter workload they shrink with it, so that it has
the reuse of the whole trace and not only the cold start."""

SHORT_QUESTION_SHARE = 0.65
SHORT_QUESTION_LOG_MEAN, SHORT_QUESTION_LOG_SD = math.log(15.0), 0.8
LONG_QUESTION_LOG_MEAN, LONG_QUESTION_LOG_SD = math.log(1300.0), 1.5
"""Tokens that a turn adds beyond the previous answer: p50 26, p75 378, p90 4,354, mean 1,354."""

REPEATS_PART_SHARE = 0.082
"""Of the requests that are no next turn, those that share more than the first block: 452 of 5,477."""

OUTPUT_QUANTILES = (
    (0.0, 1), (0.01, 3), (0.05, 10), (0.1, 24), (0.25, 156), (0.5, 356),
    (0.75, 476), (0.9, 605), (0.95, 711), (0.99, 1170), (1.0, 2000),
)  # fmt: skip
"""Output tokens, in the same way."""

SHARED_BLOCK = 0
"""Id of the block that every request begins with."""


@dataclass(frozen=True, slots=True)
class _Turn:
    number: int
    request: TraceRequest


def synthesize(num_requests: int, rng: random.Random) -> list[TraceRequest]:
    """`num_requests` requests in order of arrival, the first at 0."""
    pause_scale = num_requests / PAUSE_REQUESTS
    fresh_ids = count(SHARED_BLOCK + 1)
    due: list[tuple[float, int, _Turn]] = []  # next turns by the time when they may come
    requests: list[TraceRequest] = []
    now = 0.0
    for i in range(num_requests):
        if due and due[0][0] <= now:
            turn = _next_turn(heapq.heappop(due)[2], now, fresh_ids, rng)
        else:
            turn = _Turn(1, _opening(requests, now, fresh_ids, rng))
        requests.append(turn.request)
        if rng.random() < CONTINUES_AFTER_TURN[min(turn.number, len(CONTINUES_AFTER_TURN)) - 1]:
            pause = rng.lognormvariate(PAUSE_LOG_MEAN, PAUSE_LOG_SD) * pause_scale
            heapq.heappush(due, (now + pause, i, turn))
        now += _gap(rng)
    return requests


def _gap(rng: random.Random) -> float:
    return rng.gammavariate(1 / ARRIVAL_VARIANCE, ARRIVAL_VARIANCE / REQUESTS_PER_SECOND)


def _opening(
    earlier: Sequence[TraceRequest], now: float, fresh_ids: count[int], rng: random.Random
) -> TraceRequest:
    """A request that starts a conversation: all new, or part of an earlier prompt and then something new."""
    num_tokens = _from_quantiles(FIRST_INPUT_QUANTILES, rng)
    prefix: Sequence[int] = (SHARED_BLOCK,)
    if earlier and rng.random() < REPEATS_PART_SHARE:
        model = rng.choice(earlier).hash_ids
        prefix = model[: rng.randint(1, len(model))]
        num_tokens = min(INPUT_TOKENS_MAX, num_tokens + (len(prefix) - 1) * BLOCK_TOKENS)
    return _request(now, prefix, num_tokens, fresh_ids, rng)


def _next_turn(turn: _Turn, now: float, fresh_ids: count[int], rng: random.Random) -> _Turn:
    """The whole conversation so far, its answer and a new question."""
    before = turn.request
    num_tokens = min(INPUT_TOKENS_MAX, before.input_tokens + before.output_tokens + _question_tokens(rng))
    prefix = before.hash_ids[: before.input_tokens // BLOCK_TOKENS]
    return _Turn(turn.number + 1, _request(now, prefix, num_tokens, fresh_ids, rng))


def _request(
    now: float, prefix: Sequence[int], num_tokens: int, fresh_ids: count[int], rng: random.Random
) -> TraceRequest:
    num_blocks = -(-num_tokens // BLOCK_TOKENS)
    prefix = prefix[:num_blocks]
    hash_ids = [*prefix, *(next(fresh_ids) for _ in range(num_blocks - len(prefix)))]
    return TraceRequest(now, num_tokens, _from_quantiles(OUTPUT_QUANTILES, rng), hash_ids)


def _question_tokens(rng: random.Random) -> int:
    if rng.random() < SHORT_QUESTION_SHARE:
        return 1 + round(rng.lognormvariate(SHORT_QUESTION_LOG_MEAN, SHORT_QUESTION_LOG_SD))
    return 1 + round(rng.lognormvariate(LONG_QUESTION_LOG_MEAN, LONG_QUESTION_LOG_SD))


def _from_quantiles(quantiles: Sequence[tuple[float, int]], rng: random.Random) -> int:
    share = rng.random()
    shares = [upper_share for upper_share, _value in quantiles]
    upper = bisect_left(shares, share, lo=1)
    (lower_share, lower_value), (upper_share, upper_value) = quantiles[upper - 1], quantiles[upper]
    return round(
        lower_value + (upper_value - lower_value) * (share - lower_share) / (upper_share - lower_share)
    )
