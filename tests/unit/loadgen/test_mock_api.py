"""Bodies of every protocol become the same tokens that /tokenize tells."""

from __future__ import annotations

import msgspec
import pytest

from loadgen.mock_api import (
    ApiError,
    DetokenizeBody,
    TokenizeBody,
    decode,
    parse_chat,
    parse_completion,
    parse_messages,
    parse_responses,
    text_of_tokens,
    tokens_of,
)

MESSAGES = [
    {"role": "system", "content": "baba"},
    {"role": "user", "content": [{"type": "text", "text": "bebe"}]},
]


def encoded(**body):
    return msgspec.json.encode(body)


def told(**body):
    return tokens_of(decode(encoded(**body), TokenizeBody))


def test_chat():
    request = parse_chat(
        encoded(
            model="m", messages=MESSAGES, max_completion_tokens=7, stream=True,
            stream_options={"include_usage": True}, cache_salt="s", temperature=0,
        )
    )  # fmt: skip
    assert request.token_ids == told(messages=MESSAGES)
    assert (request.model, request.max_tokens, request.stream) == ("m", 7, True)
    assert (request.include_usage, request.cache_salt) == (True, "s")


def test_chat_without_generation_prompt():
    with_it = parse_chat(encoded(messages=MESSAGES)).token_ids
    without = parse_chat(encoded(messages=MESSAGES, add_generation_prompt=False)).token_ids
    assert without == told(messages=MESSAGES, add_generation_prompt=False)
    assert without == with_it[: len(without)]
    assert len(without) < len(with_it)


@pytest.mark.parametrize("prompt", ["baba bebe", ["baba bebe"]])
def test_completion_of_text(prompt):
    request = parse_completion(encoded(prompt=prompt, max_tokens=3))
    assert request.token_ids == told(prompt="baba bebe")
    assert (request.model, request.max_tokens, request.stream, request.include_usage) == (
        None,
        3,
        False,
        False,
    )


def test_completion_of_token_ids():
    assert parse_completion(encoded(prompt=[5, 6, 7])).token_ids == [5, 6, 7]


def test_completion_without_special_tokens():
    request = parse_completion(encoded(prompt="baba", add_special_tokens=False))
    assert request.token_ids == told(prompt="baba", add_special_tokens=False)
    assert request.token_ids == told(prompt="baba")[1:]


def test_responses_and_messages_are_chats():
    chat = told(messages=[{"role": "system", "content": "baba"}, {"role": "user", "content": "bebe"}])
    responses = parse_responses(encoded(input="bebe", instructions="baba", max_output_tokens=4))
    assert (responses.token_ids, responses.max_tokens) == (chat, 4)
    assert parse_responses(encoded(input=[{"role": "user", "content": "bebe"}])).token_ids == told(
        messages=[{"role": "user", "content": "bebe"}]
    )
    messages = parse_messages(
        encoded(system="baba", messages=[{"role": "user", "content": "bebe"}], max_tokens=5, stream=True)
    )
    assert (messages.token_ids, messages.max_tokens, messages.stream) == (chat, 5, True)


@pytest.mark.parametrize(
    ("parse", "body"),
    [
        (parse_chat, b"{"),
        (parse_chat, b"[]"),
        (parse_chat, b"{}"),
        (parse_chat, encoded(messages=[])),
        (parse_chat, encoded(messages="baba")),
        (parse_chat, b'{"messages": [{"role": "user", "content": "\xff"}]}'),
        (parse_completion, encoded(prompt=5)),
        (parse_completion, encoded(prompt=["two", "prompts"])),
        (parse_completion, encoded(prompt=[1, -1])),
        (parse_completion, encoded(prompt=[10**9])),
        (parse_completion, encoded(prompt="baba", max_tokens="x")),
        (parse_responses, encoded(input=5)),
        (parse_messages, encoded(messages=None)),
    ],
)
def test_what_is_wrong_is_a_400_in_the_shape_of_the_engine(parse, body):
    with pytest.raises(ApiError) as caught:
        parse(body)
    error = msgspec.json.decode(caught.value.body())["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["code"] == caught.value.status == 400


def test_tokenize_needs_something():
    with pytest.raises(ApiError, match="either prompt or messages"):
        told(model="m")


def test_detokenize():
    assert text_of_tokens(DetokenizeBody(told(prompt=" baba bebe", add_special_tokens=False))) == " baba bebe"
    with pytest.raises(ApiError):
        text_of_tokens(DetokenizeBody([-1]))
