"""The Mooncake format, its mistakes, and the text behind its ids."""

from __future__ import annotations

import gzip
import lzma

import pytest

from loadgen.tokenizer import tokenize
from loadgen.trace_files import read_trace
from loadgen.traces import (
    BLOCK_TOKENS,
    TraceError,
    TraceRequest,
    hit_rate_dealt,
    parse_mooncake,
    prompt_text,
    smear,
    statistics_of,
)

LINE = b'{"timestamp": 3000, "input_length": 700, "output_length": 5, "hash_ids": [0, 7], "more": 1}\n'


def request(at=0.0, tokens=BLOCK_TOKENS, ids=(0,), output=1):
    return TraceRequest(at, tokens, output, list(ids))


def test_a_line():
    (parsed,) = parse_mooncake([LINE, b"\n"])
    assert parsed == TraceRequest(3.0, 700, 5, [0, 7])


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"{", "truncated"),
        (b"[]", "Expected `object`"),
        (b'{"timestamp": 0, "input_length": 1, "output_length": 1}', "hash_ids"),
        (b'{"timestamp": 0, "input_length": 0, "output_length": 1, "hash_ids": []}', "at least 1"),
        (b'{"timestamp": -1, "input_length": 1, "output_length": 1, "hash_ids": [1]}', "negative"),
        (b'{"timestamp": 0, "input_length": 513, "output_length": 1, "hash_ids": [1]}', "2 blocks of 512"),
        (b'{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": ["x"]}', "Expected `int`"),
        (b'{"timestamp": "\xff"}', "line 3"),
    ],
)
def test_mistakes_name_their_line(line, what):
    with pytest.raises(TraceError, match="line 3") as caught:
        list(parse_mooncake([LINE, b"", line]))
    assert what in str(caught.value)


@pytest.mark.parametrize(
    ("name", "opener"), [("t.jsonl", open), ("t.jsonl.gz", gzip.open), ("t.xz", lzma.open)]
)
def test_plain_and_compressed_files(tmp_path, name, opener):
    with opener(tmp_path / name, "wb") as file:
        file.write(LINE * 5)
    assert len(read_trace(tmp_path / name)) == 5
    assert len(read_trace(tmp_path / name, 3)) == 3


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("t.gz", b"no gzip", "gzip"),
        ("t.xz", b"no xz", "format"),
        ("t.gz", gzip.compress(LINE)[:-9], "ended"),
        ("t.jsonl", b"{}", "line 1"),
        ("t.jsonl", b"", "no requests"),
    ],
)
def test_bad_files_are_named(tmp_path, name, content, what):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TraceError, match=what) as caught:
        read_trace(tmp_path / name)
    assert name in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(TraceError, match=r"absent\.jsonl"):
        read_trace(tmp_path / "absent.jsonl")


def test_a_folder_stands_for_the_one_trace_in_it(tmp_path):
    (tmp_path / "README.md").write_text("about the trace")
    with gzip.open(tmp_path / "t.jsonl.gz", "wb") as file:
        file.write(LINE)
    assert len(read_trace(tmp_path)) == 1
    (tmp_path / "u.jsonl").write_bytes(LINE)
    with pytest.raises(TraceError, match="a folder with 2 traces"):
        read_trace(tmp_path)


def test_steps_are_smeared_evenly():
    steps = [request(0.0), request(0.0), request(0.0), request(3.0), request(6.0), request(6.0)]
    assert [each.arrival_seconds for each in smear(steps)] == [0.0, 1.0, 2.0, 3.0, 6.0, 6.0]


def test_text_has_as_many_tokens_as_the_trace_says():
    whole = request(tokens=700, ids=(0, 7))
    assert len(tokenize(prompt_text(whole), add_bos=False)) == 700


def test_equal_ids_are_equal_text_and_others_are_not():
    left = prompt_text(request(tokens=1024, ids=(5, 6)))
    right = prompt_text(request(tokens=1024, ids=(5, 9)))
    half = len(left) // 2
    assert left[:half] == right[:half]
    assert left[half:] != right[half:]
    assert prompt_text(request(tokens=512, ids=(6,))) == left[half:]


def test_statistics_by_hand():
    requests = [
        request(tokens=1024, ids=(0, 1), output=2),
        request(tokens=512, ids=(0,), output=4),
        request(tokens=1600, ids=(0, 1, 2, 3), output=6),  # goes on where the first ended
    ]
    statistics = statistics_of(requests)
    assert statistics.ideal_hit_rate == pytest.approx((0 + 512 + 1024) / 3136)
    assert statistics.follow_up_share == pytest.approx(1 / 3)
    assert (statistics.median_input_tokens, statistics.mean_output_tokens) == (1024, 4.0)
    assert hit_rate_dealt(requests, 2) == pytest.approx(1024 / 3136)
    assert hit_rate_dealt(requests, 3) == 0.0
