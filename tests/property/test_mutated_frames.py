"""Recorded frames of real engines, changed at random, through the whole feed: nothing raises, every invariant
holds, and what is not understood is counted by a reason."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.adapters import ADAPTERS
from indexer.feed import KvFeed
from tests.support.recordings import recording
from tests.support.sglang_events import cleared, pages, pairs, removed, stored
from tests.support.vllm_events import batch

RECORDED = {
    "vllm": [
        [msgspec.msgpack.decode(payload) for payload in stream.values()]
        for name in ("vllm-0.23.0", "vllm-0.32.0", "vllm-0.32.0-bytes", "vllm-0.32.0-copies")
        for stream in recording(name).payloads.values()
    ],
    "sglang": [
        [
            msgspec.msgpack.decode(batch(*events, rank=None))
            for events in (
                pages([-1, 2, -3], range(12)),
                [stored([-1, 2], range(8), cache_salt="s"), removed(2, -1)],
                [stored([4, 5], pairs(range(9)), lora_name="a"), stored([6], [], parent=5)],
                [stored([-3], range(8, 12), parent=2, medium="CPU_PINNED"), cleared()],
            )
        ]
    ],
}

REASONS = {
    "attention_group", "block_size", "external", "lookahead", "malformed_event", "malformed_payload",
    "malformed_removal", "medium", "other_rank", "remote", "token_count", "token_ids", "token_pairs",
    "too_large", "unknown_event",
}  # fmt: skip

odd_values = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**64 - 1),
    st.sampled_from(
        [0, 1, 4, 32, True, 1.5, "", "CPU", "REMOTE", "mamba", "sliding_window", b"", b"\xff" * 32]
    ),
    st.lists(st.integers(-1, 9), max_size=3),
    st.lists(st.lists(st.integers(0, 9), min_size=2, max_size=2), max_size=3),
    st.dictionaries(st.sampled_from(["type", "medium"]), st.integers(0, 3), max_size=2),
)


def places(value: object, path: tuple = ()) -> list[tuple]:
    """The path to every value within one, itself included; long lists by their ends."""
    found = [path]
    if isinstance(value, dict):
        for key in value:
            found += places(value[key], (*path, key))
    elif isinstance(value, list):
        for position in {0, 1, len(value) - 1} & set(range(len(value))):
            found += places(value[position], (*path, position))
    return found


def change(batch_value: Any, path: tuple, new: object, how: str) -> object:
    """The batch with the value at a path replaced, left out, or there twice."""
    if not path:
        return new
    changed = copy.deepcopy(batch_value)
    holder = changed
    for key in path[:-1]:
        holder = holder[key]
    if how == "replace":
        holder[path[-1]] = new
    elif how == "omit":
        del holder[path[-1]]
    elif isinstance(holder, list):
        holder.insert(path[-1], holder[path[-1]])
    return changed


@pytest.mark.parametrize("engine", ADAPTERS)
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_changed_stream(engine: str, data: st.DataObject) -> None:
    stream = data.draw(st.sampled_from(RECORDED[engine]))
    start = data.draw(st.integers(0, max(0, len(stream) - 8)))
    feed = KvFeed()
    feed.add_publisher(0, engine=engine, base_model="m", block_tokens=None, can_replay=False, dp_rank=0)
    for sequence, original in enumerate(stream[start : start + 8]):
        value = original
        for _ in range(data.draw(st.integers(0, 2))):
            path = data.draw(st.sampled_from(places(value)))
            how = data.draw(st.sampled_from(["replace", "omit", "twice"]))
            value = change(value, path, data.draw(odd_values), how)
        payload = msgspec.msgpack.encode(value)
        cut = data.draw(st.none() | st.integers(0, len(payload)))
        assert feed.receive(0, sequence, payload[:cut]) == []
        feed.check()
    assert feed.stats(0).ignored.keys() <= REASONS
    feed.trust(0)
    feed.overlap([1, 2, 3], 1)
