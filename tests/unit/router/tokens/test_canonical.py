"""One text for each conversation: stable, in order, and prefix-preserving from turn to turn."""

import msgspec
import pytest

from router.tokens.canonical import canonical_text
from router.wire.endpoints import lookup
from router.wire.openai import parse_body

CHAT, RESPONSES, MESSAGES = (lookup(p) for p in ("/v1/chat/completions", "/v1/responses", "/v1/messages"))


def text_of(body, endpoint=CHAT):
    body = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return canonical_text(parse_body(body, endpoint).prompt)


def chat(*contents):
    return {"messages": [{"role": "user", "content": content} for content in contents]}


def test_a_turn_begins_with_the_one_before():
    assert text_of(chat("one", "two", "three")).startswith(text_of(chat("one", "two")))


def test_spelling_of_the_json_does_not_matter():
    assert text_of(b'{"messages":[{"role":"user","content":"h\\u00e9"}]}') == text_of(
        '{ "messages" : [ { "content" : "hé", "role" : "user", "ignored": 1 } ] }'.encode()
    )


def test_a_text_equals_its_only_part():
    assert text_of(chat("hello")) == text_of(chat([{"type": "text", "text": "hello"}]))


def test_boundaries_count():
    texts = [text_of(chat("ab", "c")), text_of(chat("a", "bc")), text_of(chat("abc"))]
    assert len(set(texts)) == 3


def test_tools_stand_before_the_conversation():
    with_tools = text_of(chat("hi") | {"tools": [{"name": "f"}]})
    assert with_tools.endswith(text_of(chat("hi")))
    assert with_tools.startswith(b'[{"name":"f"}]')


@pytest.mark.parametrize("field", ["tool_calls", "tool_call_id", "name", "reasoning_content"])
def test_what_templates_write_besides_the_content_counts(field):
    plain = {"role": "assistant", "content": None}
    assert text_of({"messages": [plain | {field: "x"}]}) != text_of({"messages": [plain]})


def test_media_count_by_their_content_and_stay_small():
    def image(data):
        return chat([{"type": "image_url", "image_url": {"url": data}}, {"type": "text", "text": "what?"}])

    assert text_of(image("a" * 100_000)) != text_of(image("b" * 100_000))
    assert len(text_of(image("a" * 100_000))) < 100


def test_responses_and_messages():
    assert b"be brief" in text_of({"instructions": "be brief", "input": "hi"}, RESPONSES)
    items = [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]
    assert text_of({"input": items}, RESPONSES) == text_of(chat("hi"))
    assert text_of({"system": "s", "messages": []}, MESSAGES).startswith(b"system\ns")
    assert b"part" in text_of({"system": [{"type": "text", "text": "part"}], "messages": []}, MESSAGES)


def test_no_depth_of_nesting_makes_it_fail():
    for depth in range(700, 1000):  # the limit counts the frames of the test runner too
        nested = b"[" * depth + b"]" * depth
        assert text_of(b'{"messages":' + nested + b"}") is not None
        assert text_of(b'{"messages":[{"role":"user","tool_calls":' + nested + b"}]}") is not None


@pytest.mark.parametrize(
    "messages",
    [
        b"[]",
        b"[null, 5, true, [], [[1]], {}]",
        b'[{"role": 7, "content": 8}]',
        b'[{"role": "user", "content": [null, 1, {"text": 3}, "x"]}]',
        b'[{"role": "user", "content": {"x": 123456789012345678901234567890}}]',
        b'[{"role": "user", "tool_calls": [123456789012345678901234567890]}]',
        b'[{"role": "user", "content": [1e999]}]',
    ],
)
def test_odd_messages_have_some_text(messages):
    text = text_of(b'{"messages":' + messages + b"}")
    assert isinstance(text, bytes)
    assert text_of(b'{"messages":' + messages + b"}") == text
