"""Requests of a trace, the Mooncake format, and the text that stands behind its block ids.

A line of the format is `{"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...]}`; each id
names one block of 512 prompt tokens and, with it, everything before. The words themselves were never
published, so an id is expanded to 512 words that depend on the id alone: equal prefixes stay equal prefixes.
Other formats are in `trace_formats`; opening files is in `trace_files`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby

import msgspec

from loadgen.tokenizer import TOKEN_TEXT

BLOCK_TOKENS = 512
"""Tokens that one id of the Mooncake format stands for."""
_TEXT_LENGTH = len(TOKEN_TEXT[0])
_EXPANDED_BLOCKS_MAX = 4096
"""Expanded ids kept: about 25 MB; most ids occur once."""


class TraceError(ValueError):
    """A trace that can't be read; the message names the line."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """`arrival_seconds` counts from the start. `hash_ids` names the prompt's complete blocks and may name a
    partial one behind them; in the Mooncake format it has ceil(input_tokens / 512) entries.

    Requests of one `session` follow each other: `think_seconds` after the answer to the one before, whatever
    their arrival times.
    """

    arrival_seconds: float
    input_tokens: int
    output_tokens: int
    hash_ids: Sequence[int]
    session: str = ""
    think_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in order of arrival, and how many tokens one of their ids stands for."""

    requests: Sequence[TraceRequest]
    block_tokens: int = BLOCK_TOKENS


class _Line(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


def parse_mooncake(lines: Iterable[str | bytes]) -> Iterator[TraceRequest]:
    """Requests in file order; empty lines are skipped. Raises TraceError with the line's number."""
    decoder = msgspec.json.Decoder(_Line)
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield _checked(decoder.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
            raise TraceError(f"line {number}: {error}") from error


def _checked(line: _Line) -> TraceRequest:
    if line.timestamp < 0 or line.input_length < 1 or line.output_length < 1:
        raise ValueError("timestamp must not be negative; input_length and output_length must be at least 1")
    expected = -(-line.input_length // BLOCK_TOKENS)
    if len(line.hash_ids) != expected:
        raise ValueError(
            f"{line.input_length} tokens are {expected} blocks of {BLOCK_TOKENS}, but there are "
            f"{len(line.hash_ids)} hash_ids"
        )
    return TraceRequest(line.timestamp / 1000.0, line.input_length, line.output_length, line.hash_ids)


def smear(requests: Sequence[TraceRequest], rng: random.Random | None = None) -> list[TraceRequest]:
    """Spreads requests that share a time up to the next one's time: evenly, or by chance as an `rng` has it.

    The Mooncake traces have arrivals in steps of about 3 s; replayed as they stand, each step would be a
    burst.
    """
    steps = [list(group) for _time, group in groupby(requests, key=lambda request: request.arrival_seconds)]
    smeared = []
    for i, step in enumerate(steps):
        start = step[0].arrival_seconds
        width = steps[i + 1][0].arrival_seconds - start if i + 1 < len(steps) else 0.0
        shares = sorted(rng.random() for _ in step) if rng else [j / len(step) for j in range(len(step))]
        smeared += [
            replace(request, arrival_seconds=start + width * share)
            for request, share in zip(step, shares, strict=True)
        ]
    return smeared


@lru_cache(maxsize=_EXPANDED_BLOCKS_MAX)
def block_text(hash_id: int) -> str:
    """512 tokens of text, always the same for the same id."""
    return "".join(random.Random(hash_id).choices(TOKEN_TEXT, k=BLOCK_TOKENS))


def prompt_text(request: TraceRequest) -> str:
    """Text of `input_tokens` tokens, without what a chat template or BOS adds."""
    text = "".join(map(block_text, request.hash_ids))
    return text[: request.input_tokens * _TEXT_LENGTH]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStatistics:
    """What a workload can win from caching, and its sizes."""

    num_requests: int
    mean_input_tokens: float
    median_input_tokens: int
    mean_output_tokens: float
    ideal_hit_rate: float
    """One cache without limit: leading ids already seen, in tokens, over all input tokens."""
    follow_up_share: float
    """Requests that go on after the last full block (two or more) of an earlier one: the next turn of a
    chat."""


def statistics_of(requests: Sequence[TraceRequest], block_tokens: int = BLOCK_TOKENS) -> TraceStatistics:
    lengths = sorted(request.input_tokens for request in requests)
    return TraceStatistics(
        num_requests=len(requests),
        mean_input_tokens=sum(lengths) / len(lengths),
        median_input_tokens=lengths[len(lengths) // 2],
        mean_output_tokens=sum(request.output_tokens for request in requests) / len(requests),
        ideal_hit_rate=hit_rate_dealt(requests, 1, block_tokens),
        follow_up_share=_follow_up_share(requests, block_tokens),
    )


def hit_rate_dealt(
    requests: Sequence[TraceRequest], num_caches: int, block_tokens: int = BLOCK_TOKENS
) -> float:
    """Token hit rate when requests are dealt by turn to that many caches without limit."""
    caches: list[set[int]] = [set() for _ in range(num_caches)]
    hits = 0
    for i, request in enumerate(requests):
        cache = caches[i % num_caches]
        hits += min(_leading_known(request.hash_ids, cache) * block_tokens, request.input_tokens)
        cache.update(request.hash_ids)
    return hits / sum(request.input_tokens for request in requests)


def _leading_known(hash_ids: Sequence[int], cache: set[int]) -> int:
    for depth, hash_id in enumerate(hash_ids):
        if hash_id not in cache:
            return depth
    return len(hash_ids)


def _follow_up_share(requests: Sequence[TraceRequest], block_tokens: int) -> float:
    ends: set[int] = set()
    count = 0
    for request in requests:
        num_full = request.input_tokens // block_tokens
        # A follow-up has something behind the block at which an earlier request ended.
        count += any(hash_id in ends for hash_id in request.hash_ids[1 : len(request.hash_ids) - 1])
        if num_full >= 2:
            ends.add(request.hash_ids[num_full - 1])
    return count / len(requests)
