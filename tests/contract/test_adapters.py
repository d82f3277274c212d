"""What every adapter owes: no bytes make it raise anything but MalformedFrame, and it invents nothing."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.adapters import ADAPTERS, MalformedFrame
from indexer.events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch
from tests.support.recordings import recording
from tests.support.vllm_events import batch, cleared, removed, stored

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=True)
    | st.text(max_size=20)
    | st.binary(max_size=40)
    | st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "GPU", "CPU", "REMOTE"])
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=14) | st.dictionaries(st.text(max_size=10), inner, max_size=6),
    max_leaves=30,
)
keys = st.sampled_from([*stored([], []), "locality", "session_id", "unheard_of"])
odd_maps = st.builds(
    lambda base, changes: {**base, **changes},
    st.sampled_from([stored([1], [1, 2, 3, 4]), removed(1), cleared()]),
    st.dictionaries(keys, anything, max_size=4),
)
odd_arrays = st.builds(
    lambda name, tail: [name, *tail],
    st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared"]),
    st.lists(anything, max_size=14),
)


@pytest.mark.parametrize("engine", ADAPTERS)
@given(payload=st.binary(max_size=200))
def test_any_bytes(engine: str, payload: bytes) -> None:
    assert is_sound(decode_or_none(engine, payload))


@pytest.mark.parametrize("engine", ADAPTERS)
@given(value=anything)
def test_any_msgpack(engine: str, value: object) -> None:
    assert is_sound(decode_or_none(engine, msgspec.msgpack.encode(value)))


@pytest.mark.parametrize("engine", ADAPTERS)
@given(events=st.lists(odd_maps | odd_arrays | anything, max_size=6), timestamp=anything, rank=anything)
def test_a_batch_of_odd_events(engine: str, events: list, timestamp: object, rank: object) -> None:
    """It is a batch, so it is never refused as a whole; every event is used or counted."""
    decoded = ADAPTERS[engine].decode(msgspec.msgpack.encode([timestamp, events, rank]))
    assert is_sound(decoded)
    assert len(decoded.events) + len(decoded.ignored) >= len(events)


@pytest.mark.parametrize("engine", ADAPTERS)
@given(data=st.data())
def test_recorded_payloads_cut_or_damaged(engine: str, data: st.DataObject) -> None:
    payload = bytearray(data.draw(st.sampled_from(PAYLOADS)))
    end = data.draw(st.integers(0, len(payload)))
    for position, value in data.draw(
        st.lists(st.tuples(st.integers(0, len(payload) - 1), st.integers(0, 255)), max_size=4)
    ):
        payload[position] = value
    assert is_sound(decode_or_none(engine, bytes(payload[:end])))


PAYLOADS = [
    payload
    for name in ("vllm-0.32.0", "vllm-0.32.0-bytes", "vllm-0.23.0")
    for payload in recording(name).payloads[0].values()
]


def decode_or_none(engine: str, payload: bytes) -> EventBatch | None:
    try:
        return ADAPTERS[engine].decode(payload)
    except MalformedFrame:
        return None


def is_sound(decoded: EventBatch | None) -> bool:
    """What comes out can be applied as it is."""
    if decoded is None:
        return True
    assert isinstance(decoded.timestamp, float)
    for event in decoded.events:
        assert isinstance(event, BlockStored | BlockRemoved | AllBlocksCleared)
        if isinstance(event, BlockStored):
            num_tokens = len(event.block_hashes) * event.block_tokens + event.lookahead_tokens
            assert not event.token_ids or (event.block_tokens > 0 and len(event.token_ids) == num_tokens)
            assert len(event.extra) in (0, len(event.block_hashes))
    return all(isinstance(reason, str) and reason for reason in decoded.ignored)


def test_damage_keeps_the_batch() -> None:
    """The odd event alone is left out."""
    payload = batch(stored([1], [1, 2, 3, 4]), {"type": "BlockStored"}, removed(2))
    decoded = ADAPTERS["vllm"].decode(payload)
    assert [type(event) for event in decoded.events] == [BlockStored, BlockRemoved]
    assert decoded.ignored == ["malformed_event"]
