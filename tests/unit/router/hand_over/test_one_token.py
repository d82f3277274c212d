import json  # noqa: TID251 - as vLLM reads bodies

import pytest

from router.hand_over.one_token import one_token_body
from router.wire.endpoints import ENDPOINTS
from router.wire.splice import members_of

CHAT, COMPLETIONS = ENDPOINTS["/v1/chat/completions"], ENDPOINTS["/v1/completions"]
ALWAYS = b'"max_tokens":1,"stream":false,"ignore_eos":true'


def one_token(body, endpoint=COMPLETIONS, more=None):
    return one_token_body(body, members_of(body), endpoint, more or {})


def test_one_token_is_asked_for_without_a_stream_and_without_an_end_before_it():
    assert one_token(b'{"prompt":"x"}') == b'{"prompt":"x",' + ALWAYS + b"}"


def test_what_a_protocol_adds_stands_last():
    assert one_token(b'{"prompt":"x"}', more={"y": b"2"}) == b'{"prompt":"x",' + ALWAYS + b',"y":2}'


@pytest.mark.parametrize(
    ("endpoint", "member", "instead"),
    [
        (COMPLETIONS, '"max_tokens":900', ("max_tokens", 1)),
        (COMPLETIONS, '"stream":true', ("stream", False)),
        (COMPLETIONS, '"stream_options":{"include_usage":true}', ("stream_options", None)),
        (COMPLETIONS, '"min_tokens":20', ("min_tokens", 0)),
        (COMPLETIONS, '"n":4', ("n", 1)),
        (COMPLETIONS, '"stop":["a","b"]', ("stop", None)),
        (COMPLETIONS, '"stop_token_ids":[7]', ("stop_token_ids", None)),
        (COMPLETIONS, '"ignore_eos":false', ("ignore_eos", True)),
        (COMPLETIONS, '"logprobs":5', ("logprobs", None)),
        (COMPLETIONS, '"logprob_token_ids":[1]', ("logprob_token_ids", None)),
        (CHAT, '"max_completion_tokens":900', ("max_completion_tokens", 1)),
        (CHAT, '"max_completion_tokens":null', ("max_completion_tokens", 1)),
        (CHAT, '"logprobs":true', ("logprobs", None)),
        (CHAT, '"top_logprobs":5', ("top_logprobs", None)),
        (CHAT, '"m\\u0069n_tokens":20', ("min_tokens", 0)),
    ],
)
def test_what_one_unread_token_needs_not_is_turned_off(endpoint, member, instead):
    body = b'{"model":"m",' + member.encode() + b"}"
    after = one_token(body, endpoint)
    assert after.startswith(body[:-1])
    name, value = instead
    assert json.loads(after)[name] == value


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
def test_what_was_not_said_is_not_said_now(endpoint):
    after = json.loads(one_token(b'{"model":"m"}', endpoint))
    assert sorted(after) == ["ignore_eos", "max_tokens", "model", "stream"]


def test_completions_know_no_other_name_for_their_length():
    assert json.loads(one_token(b'{"max_completion_tokens":7}'))["max_completion_tokens"] == 7
