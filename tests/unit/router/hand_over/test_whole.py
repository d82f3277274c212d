import json  # noqa: TID251 - bodies as clients write them

import pytest

from router.hand_over import PROTOCOLS
from router.hand_over.whole import num_prompts, why_whole
from router.wire.endpoints import ENDPOINTS
from router.wire.splice import members_of

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def why(body, path=COMPLETIONS, protocol="nixl"):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return why_whole(members_of(data), ENDPOINTS[path], [protocol], PROTOCOLS[protocol].takes_batches)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, {"prompt": "x", "max_tokens": 9, "stream": True, "logprobs": 2}),
        (COMPLETIONS, {"prompt": [1, 2, 3], "n": 1, "best_of": 1, "echo": False, "prompt_logprobs": None}),
        (COMPLETIONS, {"prompt": ["x"], "truncate_prompt_tokens": 100}),
        (CHAT, {"messages": [], "tools": [], "n": None, "response_format": {"type": "json_object"}}),
        (CHAT, {"messages": [], "logprobs": True, "top_logprobs": 5, "use_beam_search": False}),
    ],
)
def test_ordinary_requests_are_split(path, body, protocol):
    assert why(body, path, protocol) == ""


@pytest.mark.parametrize(
    "path",
    [p for p in ENDPOINTS if p.removeprefix("/v1") not in ("/completions", "/chat/completions", "/generate")],
)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_other_endpoints_are_not(path, protocol):
    assert "is not handed over" in why({}, path, protocol)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_sglangs_own_endpoint_is_split_by_its_own_protocol(protocol):
    assert (why({"text": "x"}, "/generate", protocol) == "") == (protocol == "sglang")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_body_that_only_lenient_readers_take_is_not(protocol):
    assert "strict readers" in why(b'{"prompt":"x","temperature":NaN}', protocol=protocol)


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b'{"prompt":["x","y"]}', "several prompts"),
        (b'{"prompt":[[1],[2]]}', "several prompts"),
        (b'{"prompt":[' + b" \t\r\n" * 100 + b'"x","y"]}', "several prompts"),
        (b'{"prompt":"x","n":2}', "several answers"),
        (b'{"prompt":"x","n":2.0}', "several answers"),
        (b'{"prompt":"x","n":"2"}', "several answers"),
    ],
)
def test_batches_are_split_where_a_protocol_takes_them(body, word):
    for name, protocol in PROTOCOLS.items():
        assert (word in why(body, protocol=name)) == (not protocol.takes_batches)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("prompt_logprobs", 0),
        ("prompt_logprobs", 5),
        ("echo", True),
        ("prompt_embeds", "AAAA"),
        ("use_beam_search", True),
        ("best_of", 3),
        ("truncate_prompt_tokens", -1),
        ("truncate_prompt_tokens", "-1"),
    ],
)
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("protocol", [name for name in PROTOCOLS if name != "sglang"])
def test_vllm_answers_some_requests_where_the_prompt_is_computed(protocol, path, name, value):
    assert f"'{name}'" in why({"prompt": "x", "messages": [], name: value}, path, protocol)


@pytest.mark.parametrize(
    ("path", "body", "is_whole"),
    [
        (COMPLETIONS, {"prompt": "x", "echo": True}, False),
        (COMPLETIONS, {"prompt": "x", "echo": True, "logprobs": 1}, True),
        (COMPLETIONS, {"prompt": "x", "logprobs": 1}, False),
        ("/generate", {"text": "x", "return_logprob": True}, False),
        ("/generate", {"text": "x", "return_logprob": True, "logprob_start_len": -1}, False),
        ("/generate", {"text": "x", "return_logprob": True, "logprob_start_len": 0}, True),
        ("/generate", {"text": "x", "return_logprob": False, "logprob_start_len": 0}, False),
        (
            "/generate",
            {"text": ["x", "y"], "return_logprob": [True, False], "logprob_start_len": [0, -1]},
            True,
        ),
    ],
)
def test_sglang_only_log_probabilities_of_the_prompt(path, body, is_whole):
    assert bool(why(body, path, "sglang")) == is_whole


def test_a_fleet_of_both_engines_has_the_rules_of_both():
    members = members_of(b'{"prompt":"x","echo":true}')
    assert why_whole(members, ENDPOINTS[COMPLETIONS], ["sglang", "nixl"], False)
    assert "/generate" in why_whole(members, ENDPOINTS["/generate"], ["sglang", "nixl"], False)


@pytest.mark.parametrize(
    ("path", "body", "count"),
    [
        (COMPLETIONS, '{"prompt":"x"}', None),
        (COMPLETIONS, '{"prompt":[]}', None),
        (COMPLETIONS, '{"prompt":[1,2]}', None),
        (COMPLETIONS, '{"prompt":null}', None),
        (COMPLETIONS, '{"text":["x","y"]}', None),
        (COMPLETIONS, '{"prompt":[ "x" , "y","[,"]}', 3),
        (COMPLETIONS, '{"prompt":[[],[1]]}', 2),
        ("/generate", '{"text":null,"input_ids":[[1],[2]]}', 2),
        (CHAT, '{"messages":[{"role":"user"}],"prompt":["x","y"]}', None),
    ],
)
def test_prompts_are_counted_where_they_are_a_list(path, body, count):
    assert num_prompts(members_of(body.encode()), ENDPOINTS[path]) == count
