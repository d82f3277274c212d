"""Answers have the events that a real engine was recorded with, and each is one well-framed HTTP chunk."""

from __future__ import annotations

import msgspec
import pytest

from loadgen.mock_answers import ChatAnswer, CompletionAnswer, MessagesAnswer, ResponsesAnswer, Usage
from loadgen.tokenizer import TOKEN_TEXT
from tests.support.recordings import FIXTURES

USAGE = Usage(prompt_tokens=20, completion_tokens=3, cached_tokens=16)
TEXT = TOKEN_TEXT[:3]


def dechunked(stream):
    """The payloads of HTTP chunks; fails on a wrong size."""
    chunks = []
    while stream:
        size, _, stream = stream.partition(b"\r\n")
        length = int(size, 16)
        assert stream[length : length + 2] == b"\r\n"
        chunks.append(stream[:length])
        stream = stream[length + 2 :]
    return chunks


def events(stream):
    """(name or None, data) of each event; every chunk holds exactly one."""
    parsed = []
    for chunk in dechunked(stream):
        *names, data = chunk.removesuffix(b"\n\n").split(b"\n")
        name = names[0].removeprefix(b"event: ").decode() if names else None
        data = data.removeprefix(b"data: ")
        parsed.append((name, data if data == b"[DONE]" else msgspec.json.decode(data)))
    return parsed


def stream_of(answer):
    stream = answer.opening()
    for text in TEXT:
        stream += answer.token(text, "length" if text is TEXT[-1] else None)
    return events(stream + answer.closing(USAGE, "".join(TEXT)))


def recorded_stream(path):
    body = (FIXTURES / "http" / path).read_bytes().split(b"\r\n\r\n", 1)[1]
    return events(body.removesuffix(b"0\r\n\r\n"))


def assert_shape_within(ours, recorded):
    """Every key of ours was recorded, with a value of the same type; lists by their first items."""
    assert ours.keys() <= recorded.keys()
    for key, value in ours.items():
        other = recorded[key]
        if isinstance(value, dict) and isinstance(other, dict):
            assert_shape_within(value, other)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            assert_shape_within(value[0], other[0])
        elif value is not None and other is not None:
            assert type(value) is type(other), key


@pytest.mark.parametrize("include_usage", [True, False])
def test_chat_stream(include_usage):
    stream = stream_of(ChatAnswer("x", "m", 5, include_usage=include_usage))
    assert stream[-1] == (None, b"[DONE]")
    role, *tokens = [data for _, data in stream[: 1 + len(TEXT)]]
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [data["choices"][0]["delta"]["content"] for data in tokens] == list(TEXT)
    assert [data["choices"][0]["finish_reason"] for data in tokens] == [None, None, "length"]
    assert {data["id"] for data in (role, *tokens)} == {"chatcmpl-x"}
    rest = [data for _, data in stream[1 + len(TEXT) : -1]]
    assert [data["usage"]["prompt_tokens_details"]["cached_tokens"] for data in rest] == [16] * include_usage


def test_chat_stream_as_recorded():
    ours = stream_of(ChatAnswer("x", "m", 5, include_usage=True))
    recorded = recorded_stream("vllm-0.32.0/stream_chat.raw")
    for i in (0, 1, -3, -2):  # role, first token, last token, usage
        assert_shape_within(ours[i][1], recorded[i][1])
    assert ours[-1] == recorded[-1]


def test_completion_body_as_recorded():
    raw = (FIXTURES / "http/vllm-0.32.0/completion.raw").read_bytes().split(b"\r\n\r\n", 1)[1]
    ours = msgspec.json.decode(
        CompletionAnswer("x", "m", 5, include_usage=False).body("abc", USAGE, "length")
    )
    assert_shape_within(ours, msgspec.json.decode(raw))
    assert ours["choices"][0]["text"] == "abc"


def test_completion_stream():
    stream = stream_of(CompletionAnswer("x", "m", 5, include_usage=True))
    assert [data["choices"][0]["text"] for _, data in stream[:3]] == list(TEXT)
    assert stream[3][1]["choices"] == []
    assert stream[3][1]["usage"]["total_tokens"] == 23


def test_older_engines_leave_the_details_out_on_a_miss():
    miss = Usage(prompt_tokens=1, completion_tokens=1, cached_tokens=None)
    assert miss.openai()["prompt_tokens_details"] is None


def test_responses_stream():
    stream = stream_of(ResponsesAnswer("x", "m", 5, include_usage=False))
    assert [name for name, _ in stream] == [
        "response.created",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * 3,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [data["sequence_number"] for _, data in stream] == list(range(10))
    assert all(data["type"] == name for name, data in stream)
    completed = stream[-1][1]["response"]
    assert completed["usage"]["input_tokens_details"] == {"cached_tokens": 16}
    assert completed["output"][0]["content"][0]["text"] == "".join(TEXT)


def test_messages_stream():
    stream = stream_of(MessagesAnswer("x", "m", 5, include_usage=False))
    assert [name for name, _ in stream] == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * 3,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert [data["delta"]["text"] for _, data in stream[2:5]] == list(TEXT)
    assert stream[-2][1]["usage"]["cache_read_input_tokens"] == 16


@pytest.mark.parametrize("kind", [ChatAnswer, CompletionAnswer, ResponsesAnswer, MessagesAnswer])
def test_the_whole_answer_holds_the_text(kind):
    body = kind("x", "m", 5, include_usage=False).body("some text", USAGE, "stop")
    assert b"some text" in body
    assert msgspec.json.decode(body)["model"] == "m"
