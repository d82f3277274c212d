"""The stream scanner: what it sees, in every kind of stream it meets."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from router.errors import WorkerTimeout
from router.wire.endpoints import Protocol
from router.wire.limits import SSE_EVENT_BYTES_MAX
from router.wire.sse import ERROR_EVENTS, SseScanner, error_event
from router.wire.usage import usage_of

TOKEN = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":1}}\n\n'
DONE = b"data: [DONE]\n\n"
FIXTURES = Path(__file__).parents[3] / "fixtures/http"


def body_of(name: str) -> bytes:
    """The body of a recorded chunked answer."""
    rest = (FIXTURES / name).read_bytes().partition(b"\r\n\r\n")[2]
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return body


@pytest.mark.parametrize("version", ["vllm-0.23.0", "vllm-0.32.0"])
def test_recorded_stream_at_every_split(version: str) -> None:
    body = body_of(f"{version}/stream_chat.raw")
    num_events = body.count(b"data:")
    for cut in range(len(body) + 1):
        scanner = SseScanner(delta_events=False)
        assert scanner.feed(body[:cut]) + scanner.feed(body[cut:]) == scanner.num_events == num_events
        assert scanner.first_token_seen
        assert scanner.at_event_boundary
        usage = usage_of(scanner.usage_line)
        assert usage is not None
        assert usage.prompt_tokens is not None


def test_nothing_has_been_seen_of_comments() -> None:
    scanner = SseScanner(delta_events=False)
    assert scanner.feed(b": keep-alive\n\n") == 0
    assert not scanner.first_token_seen
    assert scanner.at_event_boundary


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_boundary_needs_a_blank_line(end: bytes) -> None:
    scanner = SseScanner(delta_events=False)
    scanner.feed(b"data: x" + end)
    assert not scanner.at_event_boundary
    scanner.feed(end)
    assert scanner.at_event_boundary
    assert scanner.num_events == 1


@pytest.mark.parametrize(
    "events",
    [
        [
            b"event: response.created\ndata: {}\n\n",
            b'event: response.output_text.delta\ndata: {"delta":"a"}\n\n',
        ],
        [b'data: {"type":"response.created"}\n\n', b'data: {"type": "response.output_text.delta"}\n\n'],
        [b"event: message_start\ndata: {}\n\n", b"event: content_block_delta\ndata: {}\n\n"],
    ],
)
def test_first_token_of_delta_protocols(events: list[bytes]) -> None:
    scanner = SseScanner(delta_events=True)
    scanner.feed(events[0])
    assert not scanner.first_token_seen
    scanner.feed(events[1])
    assert scanner.first_token_seen


def test_text_about_deltas_is_none() -> None:
    scanner = SseScanner(delta_events=True)
    scanner.feed(
        b'data: {"type":"response.created","x":"say \\"type\\":\\"a.delta\\" or event: a.delta"}\n\n'
    )
    assert not scanner.first_token_seen


def test_usage_is_the_last_one_that_is_not_null() -> None:
    scanner = SseScanner(delta_events=False)
    null = TOKEN.replace(b"]}\n", b'],"usage": null}\n')
    scanner.feed(USAGE.replace(b"7", b"6") + USAGE + null + TOKEN)
    scanner.feed(null + DONE)
    usage = usage_of(scanner.usage_line)
    assert usage is not None
    assert usage.prompt_tokens == 7


def test_an_event_too_large_to_hold_is_counted_unread() -> None:
    scanner = SseScanner(delta_events=False)
    piece = b"x" * (SSE_EVENT_BYTES_MAX // 2)
    scanner.feed(b'data: {"usage":{"prompt_tokens":1},"x":"')
    for _ in range(10):
        assert scanner.feed(piece) == 0
        assert len(scanner._partial) <= SSE_EVENT_BYTES_MAX + len(piece)
    assert not scanner.at_event_boundary
    assert scanner.feed(b'"}\n\n') == 1
    assert scanner.at_event_boundary
    assert scanner.usage_line == b""
    assert scanner.feed(USAGE) == 1
    assert b'"prompt_tokens":7' in scanner.usage_line


ERROR = WorkerTimeout("silent", code="idle_timeout")
OBJECT = {"message": "silent", "type": "upstream_error", "param": None, "code": "idle_timeout"}
RESPONSES_EVENT = {
    "type": "error",
    "code": "idle_timeout",
    "message": "silent",
    "param": None,
    "sequence_number": 7,
    "error": OBJECT,
}
MESSAGES_EVENT = {"type": "error", "error": {"type": "api_error", "message": "silent"}}


@pytest.mark.parametrize(
    ("protocol", "name", "data", "ends_with_done"),
    [
        (Protocol.CHAT, b"", {"error": OBJECT}, True),
        (Protocol.COMPLETIONS, b"", {"error": OBJECT}, True),
        (Protocol.GENERATE, b"", {"error": OBJECT}, True),
        (Protocol.OTHER, b"", {"error": OBJECT}, False),
        (Protocol.RESPONSES, b"event: error\n", RESPONSES_EVENT, False),
        (Protocol.MESSAGES, b"event: error\n", MESSAGES_EVENT, False),
    ],
)
def test_error_event_has_the_shape_of_its_protocol(
    protocol: Protocol, name: bytes, data: dict[str, object], ends_with_done: bool
) -> None:
    text = error_event(protocol, ERROR, 7)
    event, end, rest = text.partition(b"\n\n")
    assert event.startswith(name + b"data: ")
    assert orjson.loads(event.removeprefix(name + b"data: ")) == data
    assert (end, rest) == (b"\n\n", b"data: [DONE]\n\n" if ends_with_done else b"")
    assert SseScanner(delta_events=False).feed(text) == 1 + ends_with_done


def test_every_protocol_has_an_error_event() -> None:
    assert set(ERROR_EVENTS) == set(Protocol)


@pytest.mark.parametrize("done", [DONE, b"data:[DONE]\n\n", b"data: [DONE]\r\n\r\n"])
def test_done_is_the_last_word_however_it_is_split(done: bytes) -> None:
    for cut in range(len(TOKEN), len(TOKEN + done)):
        scanner = SseScanner(delta_events=False)
        scanner.feed((TOKEN + done)[:cut])
        assert not scanner.said_done
        scanner.feed((TOKEN + done)[cut:])
        assert scanner.said_done
        scanner.feed(b"data: ")
        assert not scanner.said_done


@pytest.mark.parametrize(
    "event", [TOKEN, b'data: {"text":"data: [DONE]"}\n\n', b"data: x[DONE]\n\n", b": [DONE]\n\n", b""]
)
def test_what_is_not_done(event: bytes) -> None:
    scanner = SseScanner(delta_events=False)
    scanner.feed(TOKEN + event)
    assert not scanner.said_done


def test_done_in_a_chunk_of_its_own() -> None:
    scanner = SseScanner(delta_events=False)
    scanner.feed(TOKEN)
    scanner.feed_chunk(b"e\r\n" + DONE + b"\r\n")
    assert scanner.said_done
    scanner.feed_chunk(b"2f\r\n" + TOKEN + b"\r\n")
    assert not scanner.said_done
