"""Traces in formats besides Mooncake's, and telling which one a file has.

* Azure's of 2023 is CSV: `TIMESTAMP,ContextTokens,GeneratedTokens`. It tells arrivals and lengths and nothing
  of the words, so no two prompts share anything.
* Recorded agent sessions: one JSON object a line for a whole session, `{"id", "block_size", "tool_tokens",
  "system_tokens", "models", "requests": [{"in", "out", "hash_ids", "think_time", ...}]}`. Ids are a session's
  own. Within a session each request waits for the answer to the one before; requests of sub-agents
  (`"type": "subagent"`, with `requests` of their own) are played where they stand.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import chain, count, islice

import msgspec

from loadgen.traces import Trace, TraceError, TraceRequest, parse_mooncake, smear

AZURE_HEADER = b"TIMESTAMP,ContextTokens,GeneratedTokens"
AZURE_BLOCK_TOKENS = 16
"""Azure's trace has no blocks; vLLM's are of 16 tokens by default."""
SESSIONS_PER_SECOND = 0.1
"""Sessions were recorded one by one and have no common clock: they begin by chance, at this mean rate."""
THINK_SECONDS_MAX = 30.0
"""Longer pauses are cut. People leave sessions for hours, which no simulated day would see the end of."""
_SESSION_MARK = b'"requests"'


def parse_trace(lines: Iterable[bytes], rng: random.Random, limit: int | None = None) -> Trace:
    """The first `limit` requests of a trace in any of the formats. Chance spreads Mooncake's arrivals over
    their steps and says when sessions begin. Raises TraceError with the line's number."""
    lines = iter(lines)
    first = next(lines, b"")
    if first.removeprefix(b"\xef\xbb\xbf").strip() == AZURE_HEADER:
        return Trace(list(islice(_azure(lines), limit)), AZURE_BLOCK_TOKENS)
    lines = chain([first], lines)
    if _SESSION_MARK in first:
        return _sessions(lines, rng, limit)
    return Trace(smear(list(islice(parse_mooncake(lines), limit)), rng))


def _azure(lines: Iterable[bytes]) -> Iterator[TraceRequest]:
    start: datetime | None = None
    next_id = 0
    for number, line in enumerate(lines, start=2):
        if not line.strip():
            continue
        try:
            stamp, prompt, output = line.decode().strip().split(",")
            at = datetime.fromisoformat(stamp[:26])  # seven digits behind the second; six can be read
            input_tokens, output_tokens = int(prompt), int(output)
        except ValueError as error:
            raise TraceError(f"line {number}: {error}") from error
        start = start or at
        seconds = (at - start).total_seconds()
        if seconds < 0 or input_tokens < 1 or output_tokens < 1:
            raise TraceError(f"line {number}: times must not fall, and both lengths must be at least 1")
        num_blocks = input_tokens // AZURE_BLOCK_TOKENS
        yield TraceRequest(seconds, input_tokens, output_tokens, range(next_id, next_id + num_blocks))
        next_id += num_blocks


class _Asked(msgspec.Struct):
    type: str = "n"
    input_tokens: int = msgspec.field(name="in", default=0)
    output_tokens: int = msgspec.field(name="out", default=0)
    hash_ids: list[int] = []
    think_time: float = 0.0
    requests: list[_Asked] = []


class _Session(msgspec.Struct):
    id: str
    block_size: int
    requests: list[_Asked]
    tool_tokens: int = 0
    system_tokens: int = 0
    models: list[str] = []


def _sessions(lines: Iterable[bytes], rng: random.Random, limit: int | None) -> Trace:
    decoder = msgspec.json.Decoder(_Session)
    fresh_ids = count()
    known: dict[tuple[str, int], int] = {}
    requests: list[TraceRequest] = []
    block_tokens = 0
    begins_at = 0.0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            session = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise TraceError(f"line {number}: {error}") from error
        block_tokens = block_tokens or session.block_size
        if session.block_size != block_tokens or block_tokens < 1:
            raise TraceError(f"line {number}: blocks of {session.block_size} tokens, {block_tokens} before")
        requests += _requests_of(session, begins_at, known, fresh_ids)
        begins_at += rng.expovariate(SESSIONS_PER_SECOND)
        if limit is not None and len(requests) >= limit:
            break
    return Trace(requests[:limit], block_tokens or AZURE_BLOCK_TOKENS)


def _requests_of(
    session: _Session, begins_at: float, known: dict[tuple[str, int], int], fresh_ids: count[int]
) -> Iterator[TraceRequest]:
    """Tools and system prompt, at the head of every prompt, are the same for all sessions of a model."""
    num_common = (session.tool_tokens + session.system_tokens) // session.block_size
    model = session.models[0] if session.models else ""
    for asked in _in_order(session.requests):
        if asked.input_tokens < 1 or asked.output_tokens < 1:
            continue
        names = [
            (model, place) if place < num_common else (session.id, own)
            for place, own in enumerate(asked.hash_ids[: asked.input_tokens // session.block_size])
        ]
        ids = [known[name] if name in known else known.setdefault(name, next(fresh_ids)) for name in names]
        think = min(max(0.0, asked.think_time), THINK_SECONDS_MAX)
        yield TraceRequest(begins_at, asked.input_tokens, asked.output_tokens, ids, session.id, think)


def _in_order(asked: Iterable[_Asked]) -> Iterator[_Asked]:
    for each in asked:
        if each.type == "subagent":
            yield from _in_order(each.requests)
        else:
            yield each
