"""Usage in the protocols' own spellings."""

import re
from pathlib import Path

import pytest

from router.wire.usage import Usage, usage_of


@pytest.mark.parametrize(
    ("data", "usage"),
    [
        (
            b'{"id":"x","choices":[{"text":"\\"usage\\""}],"usage":{"prompt_tokens":13,"total_tokens":17,'
            b'"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":0,"created_cache_tokens":null}}}',
            Usage(13, 0, 4),
        ),
        (
            b'{"usage":{"prompt_tokens":13,"completion_tokens":4,"prompt_tokens_details":null}}',
            Usage(13, None, 4),
        ),
        (b'{"usage":{"prompt_tokens":9,"total_tokens":9}}', Usage(9, None, None)),
        (
            b'{"type":"response.completed","response":{"id":"r","usage":{"input_tokens":20,"output_tokens":2,'
            b'"input_tokens_details":{"cached_tokens":16}}}}',
            Usage(20, 16, 2),
        ),
        (
            b'{"type":"message_start","message":{"usage":{"input_tokens":4,"cache_read_input_tokens":16,'
            b'"cache_creation_input_tokens":12,"output_tokens":0}}}',
            Usage(32, 16, 0),
        ),
        (b'{"type":"message_delta","usage":{"output_tokens":7}}', Usage(None, None, 7)),
        (
            b'{"text":"x","meta_info":{"id":"a","prompt_tokens":8,"completion_tokens":2,"cached_tokens":4}}',
            Usage(8, 4, 2),
        ),
        (
            b' [{"meta_info":{"prompt_tokens":8,"cached_tokens":4}},{"meta_info":{"prompt_tokens":2}}]',
            Usage(10, 4, None),
        ),
    ],
)
def test_is_read(data, usage):
    assert usage_of(data) == usage


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[DONE]",
        b'{"choices":[{"delta":{"content":"usage"}}]}',
        b'{"usage":null}',
        b'{"usage":"none"}',
        b'{"usage":{"prompt_tokens":"13"}}',
        b'{"usage":{"prompt_tokens":1',
        b'{"usage":' + b"[" * 100_000,
        b'[{"usage":1}]',
        b'{"usage":{"prompt_tokens":"\xff"}}',
    ],
)
def test_is_none_where_it_cannot_be_read(data):
    assert usage_of(data) is None


@pytest.mark.parametrize(("version", "cached"), [("0.32.0", 0), ("0.23.0", None)])
def test_recorded_answers(version, cached):
    folder = Path(__file__).parents[3] / "fixtures" / "http" / f"vllm-{version}"
    body = (folder / "completion.raw").read_bytes().partition(b"\r\n\r\n")[2]
    assert usage_of(body) == Usage(13, cached, 4)
    events = re.findall(rb"^data: (.*)$", (folder / "stream_chat.raw").read_bytes(), re.MULTILINE)
    found = [usage for event in events if (usage := usage_of(event.rstrip())) is not None]
    assert len(found) == 1
    assert found[0].completion_tokens == 8
