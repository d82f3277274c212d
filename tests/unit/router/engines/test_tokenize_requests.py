"""How engines are asked for tokens: the client's own JSON, under the names that /tokenize knows."""

import msgspec
import pytest

from router.engines import ENGINES
from router.wire.endpoints import lookup
from router.wire.openai import parse_body

CHAT, COMPLETIONS, GENERATE = (
    lookup(path) for path in ("/v1/chat/completions", "/v1/completions", "/generate")
)


def request(engine, body, endpoint=CHAT):
    return ENGINES[engine].tokenize_request(endpoint.protocol, parse_body(body, endpoint).prompt, "served")


def test_values_are_the_clients_own_bytes():
    messages = b'[{"content": "\\u00e9\\ud83d\\ude00", "role":"user", "big": 123456789012345678901234567890}]'
    assert request("vllm", b'{"model":"x","messages":' + messages + b',"temperature":1}') == (
        b'{"model":"served","messages":' + messages + b"}"
    )


def test_every_field_that_changes_the_rendering_goes_along():
    body = (
        b'{"messages":[],"tools":[1],"chat_template":"t","add_generation_prompt":false,"stream":true,'
        b'"continue_final_message":true,"add_special_tokens":true,"mm_processor_kwargs":{"a":1},"tool_choice":"none"}'
    )
    assert set(msgspec.json.decode(request("vllm", body))) == {
        "model", "messages", "tools", "chat_template", "add_generation_prompt", "continue_final_message",
        "add_special_tokens", "mm_processor_kwargs",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "kwargs"),
    [
        (b'"chat_template_kwargs": {"enable_thinking": false}', {"enable_thinking": False}),
        (b'"chat_template_kwargs": {}', None),
        (b'"documents": [{"title": "t"}]', {"documents": [{"title": "t"}]}),
        (b'"reasoning_effort": "low"', {"enable_thinking": True, "reasoning_effort": "low"}),
        (b'"reasoning_effort": "none"', {"enable_thinking": False, "reasoning_effort": "none"}),
        (
            b'"reasoning_effort":"low","chat_template_kwargs":{"enable_thinking":false,"reasoning_effort":"x"}',
            {"enable_thinking": False, "reasoning_effort": "low"},
        ),
    ],
)
def test_arguments_of_the_template(fields, kwargs):
    sent = msgspec.json.decode(request("vllm", b'{"messages": [], ' + fields + b"}"))
    assert sent.get("chat_template_kwargs") == kwargs


def test_completions():
    body = b'{"prompt": "a\\nb", "add_special_tokens": false, "max_tokens": 1}'
    assert request("vllm", body, COMPLETIONS) == (
        b'{"model":"served","prompt":"a\\nb","add_special_tokens":false}'
    )
    assert request("sglang", body, COMPLETIONS) == b'{"model":"served","prompt":"a\\nb"}'


def test_sglang():
    assert request("sglang", b'{"text": "a"}', GENERATE) == b'{"model":"served","prompt":"a"}'
    body = b'{"messages": [], "tool_choice": "none", "reasoning_effort": "low", "chat_template": "x"}'
    assert request("sglang", body) == (
        b'{"model":"served","messages":[],"tool_choice":"none","reasoning_effort":"low"}'
    )


def test_what_cannot_be_asked():
    assert request("vllm", b'{"text": "a"}', GENERATE) is None
    assert request("generic", b'{"messages": []}') is None
