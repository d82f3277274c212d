"""Any body that is split: the decode worker reads what the client said; both legs make the same prompt."""

import json  # noqa: TID251 - as engines read bodies: of equal members the last counts

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from router.hand_over import PROTOCOLS
from router.wire.openai import PROMPT_FIELDS
from router.wire.splice import members_of, with_members
from tests.support.hand_overs import make_answer, make_hand_over, read

PATHS = ("/v1/chat/completions", "/v1/completions")
SPACE = st.text(" \t\r\n", max_size=3)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.sampled_from(
    ["{", "}", '"}', "\\", '\\"}']
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
SHAPING = sorted({name for names in PROMPT_FIELDS.values() for name in names} | {"model", "cache_salt"})
ASKING = [
    "max_tokens", "max_completion_tokens", "stream", "stream_options", "min_tokens", "n", "stop", "logprobs",
    "top_logprobs", "temperature", "seed", "response_format", "kv_transfer", "bootstrap",
]  # fmt: skip
NAMES = st.sampled_from(SHAPING) | st.sampled_from(ASKING) | TEXT


@st.composite
def spelled(draw, value):
    """A JSON text of a scalar or container, in one of its spellings."""
    return json.dumps(
        value, ensure_ascii=draw(st.booleans()), separators=(draw(SPACE) + ",", ":" + draw(SPACE))
    )


@st.composite
def bodies(draw):
    """Objects with members in any order, some of them twice, spaced at will, names escaped or not."""
    members = draw(st.lists(st.tuples(NAMES, VALUES), max_size=8))
    texts = []
    for name, value in members:
        key = draw(spelled(name))
        if draw(st.booleans()) and name and name.isascii():
            key = '"' + "".join(f"\\u{ord(char):04x}" for char in name) + '"'
        texts.append(draw(SPACE) + key + draw(SPACE) + ":" + draw(SPACE) + draw(spelled(value)) + draw(SPACE))
    return (draw(SPACE) + "{" + (",".join(texts) or draw(SPACE)) + "}" + draw(SPACE)).encode()


@given(bodies())
@example(b"{}")
@example(b" { \n} \n")
@example(b'{"a":{"max_tokens":5}}')
@example(b'{"a":"\\"}"}')
def test_members_are_read_as_any_reader_does(body):
    members = members_of(body)
    assert members is not None
    assert {name: json.loads(bytes(raw)) for name, raw in members.items()} == json.loads(body)


@given(bodies(), st.dictionaries(NAMES, VALUES, max_size=3))
def test_spliced_members_win_and_the_rest_stays_byte_for_byte(body, added):
    plain = {
        name: json.dumps(value).encode() for name, value in added.items() if json.dumps(name)[1:-1] == name
    }
    spliced = with_members(body, plain)
    end = body.rindex(b"}")
    assert spliced.startswith(body[:end])
    assert spliced.endswith(body[end:])
    assert json.loads(spliced) == json.loads(body) | {name: added[name] for name in plain}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@settings(max_examples=40)
@given(path=st.sampled_from(PATHS), body=bodies())
def test_both_legs_make_the_same_prompt(protocol, path, body):
    row = PROTOCOLS[protocol]
    hand_over = make_hand_over(body, protocol=protocol, path=path)
    prefill = row.prefill_leg(hand_over)
    decode = row.decode_leg(hand_over, b"" if row.is_concurrent else make_answer())
    end = body.rindex(b"}")
    said = read(body)
    for leg in (prefill, decode):
        assert leg.body.startswith(body[:end])
        assert leg.body.endswith(body[end:])
        sent = read(leg.body)
        assert all(sent[name] == said[name] for name in SHAPING if name in said)
        assert not set(SHAPING) & (set(sent) - set(said))
    at_decode = read(decode.body)
    assert all(at_decode[name] == value for name, value in said.items())
