"""Our encoding against recorded bytes, and through the adapter that the gateway reads with."""

from __future__ import annotations

import msgspec
import pytest

from indexer.adapters import ADAPTERS
from indexer.events import AllBlocksCleared, BlockRemoved, BlockStored
from loadgen.wire import (
    END_OF_REPLAY,
    Layout,
    encode_batch,
    encode_sequence,
    end_of_replay_frames,
    replay_frames,
)
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


@pytest.mark.parametrize("layout", Layout)
def test_round_trip_through_the_adapter(layout):
    batch = ADAPTERS["vllm"].decode(encode_batch(EVENTS, timestamp=1.5, dp_rank=3, layout=layout))
    assert list(batch.events) == EVENTS
    assert (batch.timestamp, batch.dp_rank) == (1.5, 3)
    assert not batch.ignored


def test_replay_answers_have_a_topic_in_the_newer_layout_only():
    sequence = encode_sequence(258)
    assert sequence == b"\0\0\0\0\0\0\1\2"
    assert replay_frames(b"t", sequence, b"p", Layout.MAPS) == [b"", b"t", sequence, b"p"]
    assert replay_frames(b"t", sequence, b"p", Layout.ARRAYS) == [b"", sequence, b"p"]
    assert end_of_replay_frames(Layout.MAPS) == [b"", b"", END_OF_REPLAY, b""]
    assert end_of_replay_frames(Layout.ARRAYS) == [b"", END_OF_REPLAY, b""]
