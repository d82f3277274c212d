from __future__ import annotations

import random

import msgspec
import pytest

from loadgen.trace_formats import THINK_SECONDS_MAX, parse_trace
from loadgen.traces import TraceError, hit_rate_dealt

AZURE = [
    b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n",
    b"2023-11-16 18:15:46.6805900,374,44\r\n",
    b"2023-11-16 18:15:50.9951690,31,109\r\n",
]


def session(name, requests, **changes):
    fields = {"id": name, "models": ["m"], "block_size": 64, "tool_tokens": 70, "system_tokens": 60}
    return msgspec.json.encode(fields | {"requests": requests} | changes)


def asked(tokens, ids, think=0.0, **changes):
    return {"type": "n", "in": tokens, "out": 5, "hash_ids": ids, "think_time": think} | changes


def parse(lines, limit=None, seed=0):
    return parse_trace(lines, random.Random(seed), limit)


def test_azure_tells_arrivals_and_lengths():
    trace = parse(AZURE)
    first, second = trace.requests
    assert (first.arrival_seconds, first.input_tokens, first.output_tokens) == (0.0, 374, 44)
    assert second.arrival_seconds == pytest.approx(4.314579)
    assert [len(request.hash_ids) for request in trace.requests] == [23, 1]
    assert hit_rate_dealt(trace.requests, 1, trace.block_tokens) == 0.0
    assert len(parse(AZURE, limit=1).requests) == 1


def test_sessions_share_tools_and_system_prompt_alone():
    requests = [asked(256, [1, 2, 3, 4])]
    trace = parse([session("a", requests), session("b", requests), session("c", requests, models=["n"])])
    a, b, c = (list(request.hash_ids) for request in trace.requests)
    assert trace.block_tokens == 64
    assert a[:2] == b[:2], "130 tokens in common are two blocks"
    assert not set(a[2:]) & set(b[2:])
    assert not set(a) & set(c)
    times = [request.arrival_seconds for request in trace.requests]
    assert times[0] == 0.0 < times[1] < times[2]


def test_within_a_session_requests_wait_and_think_and_agents_within_stand_in_line():
    agent = {"type": "subagent", "requests": [asked(130, [9, 8], 1.0)]}
    trace = parse(
        [session("a", [asked(200, [1, 2, 3]), agent, asked(260, [1, 2, 3, 4, 5], 1e6), asked(0, [])])]
    )
    assert [request.input_tokens for request in trace.requests] == [200, 130, 260]
    assert [request.think_seconds for request in trace.requests] == [0.0, 1.0, THINK_SECONDS_MAX]
    assert {request.session for request in trace.requests} == {"a"}
    assert len(trace.requests[2].hash_ids) == 4, "a partial block has no name of its own"


def test_mooncake_arrivals_are_spread_by_chance_over_their_step():
    line = b'{"timestamp": %d, "input_length": 5, "output_length": 5, "hash_ids": [0]}'
    lines = [line % at for at in (0, 0, 0, 3000)]
    times = [request.arrival_seconds for request in parse(lines).requests]
    assert 0 < times[0] < times[1] < times[2] < times[3] == 3.0
    assert times == [request.arrival_seconds for request in parse(lines).requests]
    assert times != [request.arrival_seconds for request in parse(lines, seed=1).requests]


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ([*AZURE, b"2023-11-16 18:15:51.0,3"], "line 4"),
        ([*AZURE, b"2023-11-16 18:15:51.0000000,0,1"], "line 4: .* at least 1"),
        ([*AZURE, b"2023-11-15 18:15:51.0000000,3,1"], "line 4: times must not fall"),
        ([session("a", []), session("b", [], block_size=16)], "line 2: blocks of 16 tokens, 64 before"),
        ([session("a", []), b'{"id": 3}'], "line 2"),
        ([b'{"nothing": 1}'], "line 1"),
    ],
)
def test_mistakes_name_their_line(lines, what):
    with pytest.raises(TraceError, match=what):
        parse(lines)
