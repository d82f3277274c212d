"""vLLM's manner is compared with what vLLM 0.32 itself made of the same bodies."""

import pytest

from router.tokens.local.conversation import (
    ContentFormat,
    Manner,
    prepare_messages,
    prepare_tools,
    without_developers,
)
from router.tokens.refusals import NoTokens
from tests.support.tokenizers import rows

ROWS = rows("prompts/conversations.json")


def in_order(value):
    """Equal only for mappings with equal orders of keys: templates may print whole mappings."""
    if isinstance(value, dict):
        return [(key, in_order(inner)) for key, inner in value.items()]
    return [in_order(inner) for inner in value] if isinstance(value, list) else repr(value)


@pytest.mark.parametrize("content_format", ContentFormat)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["label"])
def test_as_vllm(row, content_format):
    prepared = prepare_messages(row["body"]["messages"], content_format, Manner.VLLM)
    assert len(prepared) == len(row[content_format])
    for ours, theirs in zip(prepared, row[content_format], strict=True):
        assert in_order(ours) == in_order({key: theirs[key] for key in ours}), "the same keys and values"
        assert ours.keys() == theirs.keys()
    assert in_order(prepare_tools(row["body"].get("tools"), Manner.VLLM)) == in_order(row["tools"])
    if expected := row.get(f"{content_format}_without_developers"):
        assert without_developers(prepared) == expected


def test_a_plain_message_keeps_what_the_client_sent():
    call = {"function": {"name": "f", "arguments": '{"b": 1}', "x": 2}, "id": "c"}
    message = {"tool_calls": [call], "role": "assistant", "foo": 1, "content": None}
    (prepared,) = prepare_messages([message], ContentFormat.STRING, Manner.PLAIN)
    parsed = {"function": {"name": "f", "arguments": {"b": 1}, "x": 2}, "id": "c"}
    assert in_order(prepared) == in_order(
        {"tool_calls": [parsed], "role": "assistant", "foo": 1, "content": ""}
    )
    assert message["content"] is None
    assert call["function"]["arguments"] == '{"b": 1}', "the client's own is not touched"


def test_plain_parts_become_one_text_where_the_template_wants_one():
    parts = [{"type": "text", "text": "a"}, "b"]
    message = {"role": "user", "content": parts}
    assert prepare_messages([message], ContentFormat.STRING, Manner.PLAIN)[0]["content"] == "a\nb"
    assert prepare_messages([message], ContentFormat.PARTS, Manner.PLAIN)[0]["content"] == parts


@pytest.mark.parametrize("manner", Manner)
@pytest.mark.parametrize(
    "messages",
    [
        None,
        "x",
        [None],
        [[]],
        [{}],
        [{"role": 5}],
        [{"role": "assistant", "tool_calls": 5}],
        [{"role": "assistant", "tool_calls": [5]}],
        [{"role": "assistant", "tool_calls": [{"function": "f"}]}],
    ],
)
def test_what_no_engine_takes(messages, manner):
    with pytest.raises(NoTokens):
        prepare_messages(messages, ContentFormat.STRING, manner)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (5, "template"),
        ([5], "media"),
        ([{"type": "image_url", "image_url": {}}], "media"),
        ([{"type": []}], "media"),
        ([{"type": "text", "text": 5}], "template"),
        ([{"type": "thinking"}], "template"),
    ],
)
def test_contents_that_are_no_text(content, reason):
    with pytest.raises(NoTokens) as refusal:
        prepare_messages([{"role": "user", "content": content}], ContentFormat.STRING, Manner.VLLM)
    assert refusal.value.reason == reason


@pytest.mark.parametrize("content_format", ContentFormat)
@pytest.mark.parametrize("manner", Manner)
def test_media_have_no_text(manner, content_format):
    message = {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}
    with pytest.raises(NoTokens) as refusal:
        prepare_messages([message], content_format, manner)
    assert refusal.value.reason == "media"


@pytest.mark.parametrize("tools", [5, {}, [5], [{}], [{"function": {"name": 5}}]])
def test_tools_that_are_none(tools):
    with pytest.raises(NoTokens):
        prepare_tools(tools, Manner.VLLM)


def test_one_system_message_at_the_beginning_stays_as_it_is():
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "s"}]},
        {"role": "user", "content": "x"},
    ]
    assert without_developers(messages) == messages
