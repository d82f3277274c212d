from __future__ import annotations

import pytest

from indexer.adapters import MalformedFrame
from indexer.events import AllBlocksCleared, BlockRemoved, BlockStored, HashedBlocks
from loadgen.sim.wire import decode_events, encode_events


def test_there_and_back():
    events = [
        BlockStored([1, 2**60 - 1], None, (), 512),
        BlockRemoved([7, 8, 9]),
        BlockStored([3], 2, (), 512),
    ]
    batch = decode_events(encode_events(events, 12.5))
    assert batch.timestamp == 12.5
    assert batch.events == [
        HashedBlocks([1, 2**60 - 1]),
        HashedBlocks([7, 8, 9], is_removal=True),
        HashedBlocks([3], 2),
    ]


def test_what_is_no_message_is_refused():
    whole = encode_events([BlockStored([1, 2, 3], None, (), 512)], 0.0)
    for payload in (b"", whole[:-8], whole[:-1], encode_events([BlockRemoved([])], 0.0)):
        with pytest.raises(MalformedFrame):
            decode_events(payload)


def test_a_simulated_engine_is_not_reset():
    with pytest.raises(AssertionError, match="restarts"):
        encode_events([AllBlocksCleared()], 0.0)
