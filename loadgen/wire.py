"""The wire layouts that the mock fleet speaks: which release each stands for, how its messages are framed.

Single events are encoded in `wire_vllm` and `wire_sglang`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from indexer.events import KvEvent
from loadgen import wire_sglang, wire_vllm

SEQUENCE_BYTES = 8
"""Sequence numbers travel as unsigned big-endian integers."""
END_OF_REPLAY = b"\xff" * SEQUENCE_BYTES

_ENCODER = msgspec.msgpack.Encoder()


class Layout(StrEnum):
    MAPS = "maps"
    BYTES = "bytes"
    ARRAYS = "arrays"
    SHORT_ARRAYS = "short-arrays"
    SGLANG_MAPS = "sglang-maps"
    SGLANG_ARRAYS = "sglang-arrays"
    SGLANG_SHORT_ARRAYS = "sglang-short-arrays"


@dataclass(frozen=True, slots=True)
class Release:
    """An engine of the time when a layout was spoken, and what it can do besides."""

    engine: str
    version: str
    encode: Callable[[KvEvent], object]
    replays_topic: bool
    """Replay answers carry the topic."""
    reads_rank: bool
    """A header of a request names its data-parallel rank."""
    announces: bool = False
    """It tells over HTTP where it publishes."""


RELEASES: Mapping[Layout, Release] = {
    Layout.MAPS: Release("vllm", "0.32.0", wire_vllm.as_map, True, True),
    Layout.BYTES: Release("vllm", "0.32.0", wire_vllm.as_map_with_bytes, True, True),
    Layout.ARRAYS: Release("vllm", "0.23.0", wire_vllm.as_array, False, True),
    Layout.SHORT_ARRAYS: Release("vllm", "0.9.2", wire_vllm.as_short_array, False, False),
    Layout.SGLANG_MAPS: Release("sglang", "0.5.23", wire_sglang.as_map, True, True, announces=True),
    Layout.SGLANG_ARRAYS: Release("sglang", "0.5.15", wire_sglang.as_array, False, True),
    Layout.SGLANG_SHORT_ARRAYS: Release("sglang", "0.5.5", wire_sglang.as_short_array, False, False),
}

NEWEST: Mapping[str, Layout] = {"vllm": Layout.MAPS, "sglang": Layout.SGLANG_MAPS}
"""By engine."""


def encode_batch(events: Sequence[KvEvent], *, timestamp: float, dp_rank: int, layout: Layout) -> bytes:
    """The payload frame of one message; `timestamp` in Unix seconds."""
    encode = RELEASES[layout].encode
    return _ENCODER.encode([timestamp, [encode(event) for event in events], dp_rank])


def encode_sequence(sequence: int) -> bytes:
    return sequence.to_bytes(SEQUENCE_BYTES, "big")


def replay_frames(topic: bytes, sequence: bytes, payload: bytes, layout: Layout) -> list[bytes]:
    """One answer of the replay socket, behind the identity frame."""
    if RELEASES[layout].replays_topic:
        return [b"", topic, sequence, payload]
    return [b"", sequence, payload]


def end_of_replay_frames(layout: Layout) -> list[bytes]:
    """The marker that ends a replay."""
    return replay_frames(b"", END_OF_REPLAY, b"", layout)
