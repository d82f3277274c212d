"""Our encoding against recorded bytes, and through the adapter that the gateway reads with."""

from __future__ import annotations

import msgspec
import pytest

from indexer.events import AllBlocksCleared, BlockRemoved, BlockStored
from loadgen.wire import (
    END_OF_REPLAY,
    Layout,
    encode_batch,
    encode_sequence,
    end_of_replay_frames,
    replay_frames,
)
from tests.support.layouts import decoded
from tests.support.recordings import recording

STORED_FIELDS = (
    "type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name",
    "extra_keys",
)  # fmt: skip


def as_event(raw):
    """A recorded event in either layout as a plain value."""
    fields = raw if isinstance(raw, dict) else dict(zip(STORED_FIELDS, raw, strict=False))
    match fields["type"]:
        case "BlockStored":
            adapter = fields["lora_name"] or ""
            salts = [key for key in fields["extra_keys"][0] or () if key != adapter]
            return BlockStored(
                fields["block_hashes"],
                fields["parent_block_hash"],
                fields["token_ids"],
                fields["block_size"],
                adapter=adapter,
                cache_salt="".join(salts),
            )
        case "BlockRemoved":
            return BlockRemoved(fields["block_hashes"])
        case _:
            return AllBlocksCleared()


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("vllm-0.32.0", Layout.MAPS),
        ("vllm-0.32.0-bytes", Layout.MAPS),
        ("vllm-0.32.0-copies", Layout.MAPS),
        ("vllm-0.23.0", Layout.ARRAYS),
    ],
)
def test_bytes_as_recorded(name, layout):
    compared = 0
    for payload in recording(name).payloads[0].values():
        if b"session_id" in payload:  # the mock knows no sessions
            continue
        timestamp, events, rank = msgspec.msgpack.decode(payload)
        ours = encode_batch(
            [as_event(event) for event in events], timestamp=timestamp, dp_rank=rank, layout=layout
        )
        assert ours == payload
        compared += 1
    assert compared > 20


EVENTS = [
    AllBlocksCleared(),
    BlockStored([2**63 + 1, 5], None, list(range(8)), 4, adapter="lora", cache_salt="salt"),
    BlockStored([6], 5, [1, 2, 3, 4], 4),
    BlockRemoved([5]),
]


@pytest.mark.parametrize("layout", [Layout.MAPS, Layout.ARRAYS])
def test_round_trip_through_the_adapter(layout):
    batch = decoded(encode_batch(EVENTS, timestamp=1.5, dp_rank=3, layout=layout), layout)
    assert list(batch.events) == EVENTS
    assert (batch.timestamp, batch.dp_rank) == (1.5, 3)
    assert not batch.ignored


@pytest.mark.parametrize("layout", Layout)
def test_every_layout_is_understood(layout):
    """What it has no field for is lost, the rest is there, and hashes name the same blocks throughout."""
    batch = decoded(encode_batch(EVENTS, timestamp=1.5, dp_rank=3, layout=layout), layout)
    assert not batch.ignored
    assert (batch.timestamp, batch.dp_rank) == (1.5, 3)
    cleared, first, second, removed = batch.events
    assert isinstance(cleared, AllBlocksCleared)
    assert (list(first.token_ids), first.block_tokens, first.parent_hash) == (list(range(8)), 4, None)
    assert second.parent_hash == first.block_hashes[1] == removed.block_hashes[0]


def test_hashes_in_the_spelling_of_each_time():
    def first_hash(layout):
        stored = decoded(encode_batch(EVENTS, timestamp=1.5, dp_rank=0, layout=layout), layout).events[1]
        return stored.block_hashes[0]

    assert first_hash(Layout.MAPS) == 2**63 + 1
    assert first_hash(Layout.SHORT_ARRAYS) == first_hash(Layout.SGLANG_MAPS) == 1 - 2**63
    assert len(first_hash(Layout.BYTES)) == 32


def test_nil_fields_are_left_out_where_sglang_leaves_them_out():
    payload = encode_batch(EVENTS[2:3], timestamp=0.0, dp_rank=0, layout=Layout.SGLANG_MAPS)
    (stored,) = msgspec.msgpack.decode(payload)[1]
    assert "cache_salt" not in stored
    assert "lora_name" not in stored


def test_replay_answers_have_a_topic_in_the_newer_layouts_only():
    sequence = encode_sequence(258)
    assert sequence == b"\0\0\0\0\0\0\1\2"
    for layout in (Layout.MAPS, Layout.BYTES, Layout.SGLANG_MAPS):
        assert replay_frames(b"t", sequence, b"p", layout) == [b"", b"t", sequence, b"p"]
        assert end_of_replay_frames(layout) == [b"", b"", END_OF_REPLAY, b""]
    for layout in (Layout.ARRAYS, Layout.SHORT_ARRAYS, Layout.SGLANG_ARRAYS, Layout.SGLANG_SHORT_ARRAYS):
        assert replay_frames(b"t", sequence, b"p", layout) == [b"", sequence, b"p"]
        assert end_of_replay_frames(layout) == [b"", END_OF_REPLAY, b""]
