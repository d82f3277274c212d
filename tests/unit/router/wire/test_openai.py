"""What is read from bodies, what is refused by name, and what is let through unjudged."""

import pytest

from router.errors import BadRequest
from router.wire.endpoints import lookup
from router.wire.limits import LENIENT_BYTES
from router.wire.openai import parse_body

CHAT = lookup("/v1/chat/completions")
COMPLETIONS = lookup("/v1/completions")
RESPONSES = lookup("/v1/responses")
MESSAGES = lookup("/v1/messages")
GENERATE = lookup("/generate")
EMBEDDINGS = lookup("/v1/embeddings")


def prompt_of(parsed):
    return {name: bytes(raw) for name, raw in parsed.prompt.items()}


def refused(body, endpoint=CHAT):
    with pytest.raises(BadRequest) as caught:
        parse_body(body, endpoint)
    return caught.value


def test_chat_fields_are_slices_of_the_body():
    messages = b'[ {"role": "user", "content": "h\\u00e9llo", "odd": 1e400} ]'
    parsed = parse_body(
        b'{"model": "m", "stream": true, "n": 3, "tools": [], "messages":' + messages + b"}", CHAT
    )
    assert (parsed.model, parsed.stream, parsed.n) == ("m", True, 3)
    assert prompt_of(parsed) == {"messages": messages, "tools": b"[]"}


def test_defaults():
    parsed = parse_body(b'{"messages": []}', CHAT)
    assert (parsed.model, parsed.stream, parsed.n, parsed.cache_salt, parsed.session) == (
        None,
        False,
        1,
        "",
        None,
    )


@pytest.mark.parametrize(
    "prompt", [b'"text"', b'["a","b"]', b"[1,2,3]", b"[[1],[2]]", b"[]", b'""', b"[null]", b"[1.5, 1e999]"]
)
def test_prompts_of_every_shape_pass_untouched(prompt):
    assert prompt_of(parse_body(b'{"prompt":' + prompt + b"}", COMPLETIONS)) == {"prompt": prompt}


def test_prompt_embeds_stand_in_for_the_prompt():
    parsed = parse_body(b'{"prompt": null, "prompt_embeds": "AAAA"}', COMPLETIONS)
    assert prompt_of(parsed) == {"prompt_embeds": b'"AAAA"'}


@pytest.mark.parametrize(
    ("endpoint", "body", "fields"),
    [
        (RESPONSES, b'{"input": "x", "instructions": "be brief"}', {"instructions", "input"}),
        (RESPONSES, b"{}", set()),
        (MESSAGES, b'{"system": "s", "messages": [], "max_tokens": 1}', {"system", "messages"}),
        (GENERATE, b'{"text": "x", "sampling_params": {}}', {"text"}),
        (GENERATE, b'{"input_ids": [1, 2]}', {"input_ids"}),
        (EMBEDDINGS, b'{"input": "x"}', set()),
    ],
)
def test_each_protocol_has_its_own_prompt_fields(endpoint, body, fields):
    assert set(parse_body(body, endpoint).prompt) == fields


def test_the_last_of_two_equal_keys_counts():
    parsed = parse_body(b'{"model": 1, "prompt": 1, "model": "b", "prompt": "x"}', COMPLETIONS)
    assert (parsed.model, prompt_of(parsed)) == ("b", {"prompt": b'"x"'})


def test_keys_may_be_escaped():
    assert parse_body(b'{"mod\\u0065l": "m", "prompt": "x"}', COMPLETIONS).model == "m"


@pytest.mark.parametrize(
    ("body", "session"),
    [
        (b'{"session_id": "a", "prompt_cache_key": "c"}', "a"),
        (b'{"session_params": {"session_id": "b", "offset": 3}, "prompt_cache_key": "c"}', "b"),
        (b'{"prompt_cache_key": "c", "metadata": {"session_id": "d"}}', "c"),
        (b'{"metadata": {"session_id": "d", "other": [1]}}', "d"),
        (b'{"user": "somebody"}', None),
        (b'{"session_id": 7, "metadata": "odd"}', None),
        (b'{"session_id": "", "session_params": []}', None),
    ],
)
def test_sources_of_a_session(body, session):
    assert parse_body(body, GENERATE).session == session


@pytest.mark.parametrize(
    ("fields", "n"),
    [
        (b'"n": 2', 2),
        (b'"n": null', 1),
        (b'"n": "2"', 1),
        (b'"n": 0', 1),
        (b'"n": true', 1),
        (b'"n": 1e999', 1),
        (b'"sampling_params": {"n": 4}', 4),
        (b'"sampling_params": [{"n": 4}]', 1),
        (b'"n": ' + b"9" * 5000, 1),
    ],
)
def test_choices(fields, n):
    assert parse_body(b"{" + fields + b"}", GENERATE).n == n


@pytest.mark.parametrize("value", [b'"yes"', b"1", b"null", b"false", b"{}"])
def test_only_true_streams(value):
    assert parse_body(b'{"stream": ' + value + b"}", GENERATE).stream is False


def test_salt_and_stored_response():
    parsed = parse_body(b'{"cache_salt": "s", "previous_response_id": "resp_1"}', RESPONSES)
    assert (parsed.cache_salt, parsed.previous_response_id) == ("s", "resp_1")


@pytest.mark.parametrize(
    ("endpoint", "body", "param", "message"),
    [
        (CHAT, b'{"model": 5, "messages": []}', "model", "'model' must be a string, not a number"),
        (CHAT, b'{"model": ["a"], "messages": []}', "model", "'model' must be a string, not an array"),
        (CHAT, b'{"model": "m"}', "messages", "'messages' is required"),
        (CHAT, b'{"model": "m", "messages": null}', "messages", "'messages' is required"),
        (CHAT, b'{"messages": "hi"}', "messages", "'messages' must be an array, not a string"),
        (MESSAGES, b'{"messages": {}}', "messages", "'messages' must be an array, not an object"),
        (COMPLETIONS, b"{}", "prompt", "'prompt' is required"),
        (COMPLETIONS, b'{"prompt": 5}', "prompt", "'prompt' must be a string or an array, not a number"),
        (
            COMPLETIONS,
            b'{"prompt": true, "prompt_embeds": ""}',
            "prompt",
            "must be a string or an array, not a boolean",
        ),
        (EMBEDDINGS, b'{"model": false}', "model", "'model' must be a string, not a boolean"),
    ],
)
def test_what_routing_needs_is_refused_by_name(endpoint, body, param, message):
    error = refused(body, endpoint)
    assert (error.status, error.param) == (400, param)
    assert message in error.message


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "body is empty"),
        (b'{"model": "m", "messages": ', "line 1 column 28 (character 27)"),
        (b'{"messages": []} {', "Extra data"),
        (b'{"messages": [],}', "double quotes"),
        (b"messages=1", "Expecting value"),
        (b"[]", "must be a JSON object"),
        (b'"text"', "must be a JSON object"),
        (b"NaN", "must be a JSON object, not a number"),
        (b'{"messages": [], "x": "\xff"}', "no valid utf-8 at byte 23"),
        (b'{"messages": [\xc3]}', "no valid utf-8 at byte 14"),
    ],
)
def test_what_is_no_json_object_is_refused_with_its_place(body, message):
    error = refused(body)
    assert error.code == "invalid_json"
    assert message in error.message


@pytest.mark.parametrize(
    "odd",
    [
        b'"temperature": NaN',
        b'"bias": {"1": -Infinity}',
        b'"stop": "\\ud800"',
        b'"stop": "\xed\xa0\x80"',
        b'"logit_bias": {"x": NaN, "seed": ' + b"7" * 5000 + b"}",
    ],
)
def test_json_for_lenient_readers_is_routed_without_a_prefix(odd):
    parsed = parse_body(b'{"model": "m", "stream": true, "n": 2, "messages": [], ' + odd + b"}", CHAT)
    assert (parsed.model, parsed.stream, parsed.n, dict(parsed.prompt)) == ("m", True, 2, {})


def test_a_byte_order_mark_passes():
    assert parse_body(b'\xef\xbb\xbf{"model": "m", "messages": []}', CHAT).model == "m"


def test_a_long_body_is_not_read_leniently_but_forwarded():
    tail = b'"messages": "' + b"x" * LENIENT_BYTES + b'", "x": NaN}'
    parsed = parse_body(b'{"model": "m", ' + tail, CHAT)
    assert (parsed.model, dict(parsed.prompt)) == ("m", {})


def test_lenient_reading_judges_what_routing_needs_too():
    assert refused(b'{"messages": 3, "x": NaN}').param == "messages"
    assert refused(b'{"model": NaN, "messages": []}').param == "model"
    assert refused(b'{"x": NaN}').param == "messages"


@pytest.mark.parametrize("endpoint", [CHAT, EMBEDDINGS])
def test_deep_nesting_is_forwarded_without_a_prefix(endpoint):
    deep = b"[" * 100_000 + b"]" * 100_000
    body = b'{"x": {"model": "inner", "y": "\\"{"}, "model" : "m\\u0041", "messages": ' + deep + b"}"
    parsed = parse_body(body, endpoint)
    assert (parsed.model, dict(parsed.prompt)) == ("mA", {})


def test_deep_nesting_for_lenient_readers():
    body = b'{"model": "m", "x": NaN, "messages": ' + b"[" * 5000 + b"]" * 5000 + b"}"
    assert parse_body(body, CHAT).model == "m"


def test_deep_nesting_with_the_model_out_of_sight_names_none():
    deep = b"[" * 5000 + b"]" * 5000
    assert parse_body(b'{"messages": ' + deep + b', "model": "m"}', CHAT).model is None
