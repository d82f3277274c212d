"""Any JSON object, in any spelling, is read alike, and nothing makes the reader or the token sources fail."""

import asyncio
import json  # noqa: TID251 - another reader than the one under test

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from router.errors import BadRequest
from router.tokens.bytes import BytesTokens
from router.wire.endpoints import ENDPOINTS, lookup
from router.wire.openai import PROMPT_FIELDS, parse_body
from router.wire.usage import Usage, usage_of
from tests.support.token_host import MODEL, StubHost

ENDPOINT = st.sampled_from([lookup(path) for path in ENDPOINTS if lookup(path).routed_by_prompt])
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": TEXT}, optional={"content": VALUES, "tool_calls": VALUES, "name": VALUES})
    | VALUES,
    max_size=4,
)
PROMPTS = TEXT | st.lists(TEXT) | st.lists(st.integers(0, 2**32 - 1)) | st.lists(st.lists(st.integers(0, 9)))
KNOWN = {
    "model": TEXT,
    "messages": MESSAGES,
    "prompt": PROMPTS,
    "text": PROMPTS,
    "input_ids": PROMPTS,
    "input": TEXT | MESSAGES,
    "system": TEXT | MESSAGES,
    "tools": VALUES,
    "n": st.integers(1, 9),
    "stream": st.booleans(),
    "cache_salt": TEXT,
    "session_id": TEXT,
    "metadata": VALUES,
    "sampling_params": VALUES,
}
BODIES = st.builds(
    lambda odd, known: odd | known,
    st.dictionaries(TEXT | st.sampled_from(sorted(KNOWN)), VALUES, max_size=4),
    st.fixed_dictionaries({}, optional=KNOWN),
)


def read(body, endpoint):
    """What is read of a body, as plain values, or what is refused."""
    try:
        parsed = parse_body(body, endpoint)
    except BadRequest as error:
        return error.status, error.param, error.message
    prompt = {name: json.loads(bytes(raw)) for name, raw in parsed.prompt.items()}
    return parsed.model, parsed.stream, parsed.n, prompt, parsed.cache_salt, parsed.session


@given(BODIES, ENDPOINT)
def test_spelling_does_not_matter(value, endpoint):
    plain = json.dumps(value).encode()
    spaced = json.dumps(value, indent=3, ensure_ascii=False).encode()
    reordered = json.dumps(dict(reversed(value.items()))).encode()
    assert read(plain, endpoint) == read(spaced, endpoint) == read(reordered, endpoint)


@given(BODIES, ENDPOINT)
def test_what_is_read_is_what_was_sent(value, endpoint):
    parsed = read(json.dumps(value).encode(), endpoint)
    if parsed[0] == 400:
        assert parsed[1] in ("model", "messages", "prompt")
        return
    model, stream, n, prompt, *_ = parsed
    assert model == (value.get("model") or None)
    assert stream is (value.get("stream") is True)
    assert n >= 1
    expected = {name: value[name] for name in PROMPT_FIELDS[endpoint.protocol] if value.get(name) is not None}
    assert prompt == expected


@given(BODIES, ENDPOINT)
def test_lenient_reading_agrees_where_it_reads(value, endpoint):
    """A NaN that routing does not look at changes nothing but that the prefix is not read."""
    strict = read(json.dumps(value).encode(), endpoint)
    lenient = read(json.dumps(value | {"a number": float("nan")}).encode(), endpoint)
    if strict[0] == 400:
        assert lenient == strict
    else:
        assert (lenient[:2], lenient[3]) == (strict[:2], {})


@given(st.binary(max_size=64), ENDPOINT)
@example(b'{"messages":[],"prompt":""', lookup("/v1/completions"))
@example(b"\xef\xbb\xbf", lookup("/v1/completions"))
@example(b"\x00{\x00}", lookup("/v1/completions"))
@example(b'{"messages":' + b"[" * 100_000, lookup("/v1/chat/completions"))
def test_any_bytes_are_read_or_refused(body, endpoint):
    assert read(body, endpoint)  # any exception but BadRequest would come through


@given(BODIES, ENDPOINT, st.data())
def test_a_body_cut_or_damaged_is_read_or_refused(value, endpoint, data):
    body = bytearray(json.dumps(value).encode())
    position = data.draw(st.integers(0, len(body) - 1))
    body[position] = data.draw(st.integers(0, 255))
    for damaged in (bytes(body), bytes(body[:position])):
        assert read(damaged, endpoint)


@pytest.fixture(scope="module")
def runner():
    with asyncio.Runner() as runner:
        yield runner


@settings(deadline=None)
@given(value=BODIES, endpoint=ENDPOINT)
def test_every_body_that_is_read_becomes_a_prompt_or_none(value, endpoint, runner):
    body = json.dumps(value).encode()
    if read(body, endpoint)[0] == 400:
        return
    prompt = runner.run(BytesTokens(StubHost()).prompt(parse_body(body, endpoint), endpoint, MODEL))
    assert prompt is None or prompt.num_tokens >= 0


@given(VALUES, st.sampled_from(["usage", "meta_info", "response", "message"]))
def test_any_answer_has_a_usage_or_none(value, name):
    for answer in ({name: value}, {name: {"usage": value}}, [{name: value}]):
        usage = usage_of(json.dumps(answer).encode())
        assert usage is None or isinstance(usage, Usage)
