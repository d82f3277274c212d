"""The stream scanner sees the same in any chunking, and what a plain reader of the whole sees."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from router.wire.sse import SseScanner

LINES = st.sampled_from(
    [
        b"data: {}",
        b'data: {"usage":{"prompt_tokens":1}}',
        b'data: {"usage": null}',
        b"data: [DONE]",
        b"data:",
        b": comment",
        b"event: content_block_delta",
        b"id: 7",
        b"",
    ]
)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Whole events, then perhaps the beginning of one; line ends of one kind."""
    end = draw(st.sampled_from([b"\n", b"\r\n"]))
    events = draw(st.lists(st.lists(LINES.filter(bool), min_size=1, max_size=3), max_size=6))
    rest = draw(st.sampled_from([b"", b"data: {", b"da"]))
    return b"".join(end.join(lines) + end + end for lines in events) + rest


def chunked(data: bytes, cuts: list[int]) -> list[bytes]:
    ends = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(ends)]


def state(scanner: SseScanner) -> tuple[object, ...]:
    return (
        scanner.num_events,
        scanner.first_token_seen,
        scanner.usage_line.strip(),
        scanner.at_event_boundary,
    )


@given(streams(), st.lists(st.integers(min_value=0), max_size=8), st.booleans())
def test_any_chunking_gives_the_same(data: bytes, cuts: list[int], delta_events: bool) -> None:
    whole, parts = SseScanner(delta_events=delta_events), SseScanner(delta_events=delta_events)
    whole.feed(data)
    for piece in chunked(data, cuts):
        parts.feed(piece)
    assert state(parts) == state(whole)


@given(streams(), st.booleans())
def test_agrees_with_a_plain_reader(data: bytes, delta_events: bool) -> None:
    scanner = SseScanner(delta_events=delta_events)
    scanner.feed(data)
    text = data.replace(b"\r\n", b"\n")
    whole, _, rest = text.rpartition(b"\n\n")
    lines = whole.split(b"\n")
    data_lines = [line for line in lines if line.startswith(b"data:")]
    assert scanner.num_events == len(data_lines)
    assert scanner.at_event_boundary == (not rest)
    first = any(line.startswith(b"event:") for line in lines) if delta_events else bool(data_lines)
    assert scanner.first_token_seen == first
    usages = [line for line in data_lines if b'"usage":{' in line]
    assert scanner.usage_line == (usages[-1].removeprefix(b"data:") if usages else b"")
