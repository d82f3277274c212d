"""How a payload becomes events, whichever engine sent it: the batch, its two layouts, and what does not fit.

A payload is a msgpack batch `[ts, events, rank]`; one development build of vLLM sent it as a map. An event is
an array that begins with its class name, or a map with the key `type`. The two layouts are decoded by types
in one pass. A batch in which one event does not fit is decoded a second time, event by event, so that the odd
one alone is left out. Elements at the end, keys and event types that are not known are skipped, as later
releases add some.

Which fields an engine's events have, and what they mean, is said in its own file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_
from types import GenericAlias
from typing import Any

import msgspec
from msgspec import Struct

from indexer.adapters.errors import MalformedFrame
from indexer.events import AllBlocksCleared, EventBatch, KvEvent, Tier
from indexer.limits import PAYLOAD_BYTES

TIERS = {
    None: Tier.DEVICE,
    "GPU": Tier.DEVICE,
    "CPU": Tier.HOST,
    "CPU_PINNED": Tier.HOST,
    "CPU_TIER1": Tier.HOST,
    "CPU_TIER2": Tier.DISK,
    "DISK": Tier.DISK,
    "NVME": Tier.DISK,
    "STORAGE": Tier.DISK,
}
"""The media that engines and their offloading connectors name, in capitals. On a CPU build the device is
called GPU too."""

_SHARED_MEDIA = frozenset({"EXTERNAL", "NETWORK", "REMOTE", "SHARED"})
"""Stores that belong to no worker: every one reads from them alike."""


class Unusable(Exception):
    """An event that is left out; the message is the reason it is counted under."""


class UnreadableRemoval(Unusable):
    """It may have named any block, so none can be believed any more."""


def tier_of(medium: str | None) -> Tier:
    """Raises Unusable for a medium that is not the worker's own, or not known."""
    name = medium if medium is None else medium.upper()
    if name not in TIERS:
        raise Unusable("external" if name in _SHARED_MEDIA else "medium")
    return TIERS[name]


Translation = Callable[[Any], KvEvent]
"""A typed event -> ours. Raises Unusable."""


class BatchReader:
    """The payloads of one engine. `maps` and `arrays`: its event types in each layout, with their
    translations; the types' tags are the class names on the wire."""

    def __init__(
        self, maps: Mapping[type[Struct], Translation], arrays: Mapping[type[Struct], Translation]
    ) -> None:
        self._translations = {**maps, **arrays}
        self._layouts: dict[type, dict[str, type[Struct]]] = {dict: _by_tag(maps), list: _by_tag(arrays)}
        self._decoders = (_batch_decoder(maps), _batch_decoder(arrays))

    def decode(self, payload: bytes) -> EventBatch:
        """One message's payload as events. Raises MalformedFrame when it is no batch at all.

        About 0.2 us for a block of 16 tokens.
        """
        if len(payload) > PAYLOAD_BYTES:
            raise MalformedFrame(f"payload of {len(payload)} bytes, more than {PAYLOAD_BYTES}")
        batch = self._decode_typed(payload)
        if batch is None:
            return self._translate(*_decode_generic(payload))
        return self._translate(batch.ts, batch.events, batch.rank)

    def _decode_typed(self, payload: bytes) -> Any:  # noqa: ANN401 - a struct made of the tables
        """The batch, or None when its events do not all fit one layout."""
        for decode in self._decoders if _first_event_is_map(payload) else self._decoders[::-1]:
            try:
                return decode(payload)
            except (msgspec.DecodeError, RecursionError):
                continue
        return None

    def _translate(self, timestamp: float, raw_events: Sequence[Any], rank: int | None) -> EventBatch:
        events: list[KvEvent] = []
        ignored: list[str] = []
        for raw in raw_events:
            try:
                event = raw if isinstance(raw, Struct) else self._convert(raw)
                events.append(self._translations[type(event)](event))
            except UnreadableRemoval as reason:
                events.append(AllBlocksCleared())
                ignored.append(str(reason))
            except Unusable as reason:
                ignored.append(str(reason))
        return EventBatch(events, timestamp, rank, ignored)

    def _convert(self, raw: object) -> Struct:
        """One event of a batch that did not fit as a whole."""
        name = raw.get("type") if isinstance(raw, dict) else raw[0] if isinstance(raw, list) and raw else None
        layout = self._layouts.get(type(raw), {})
        if not isinstance(name, str) or name not in layout:
            raise Unusable("unknown_event")
        try:
            return msgspec.convert(raw, layout[name])
        except msgspec.ValidationError:
            if name == "BlockRemoved":
                raise UnreadableRemoval("malformed_removal") from None
            raise Unusable("malformed_event") from None


def _by_tag(types: Mapping[type[Struct], Translation]) -> dict[str, type[Struct]]:
    return {str(event_type.__struct_config__.tag): event_type for event_type in types}


def _batch_decoder(types: Mapping[type[Struct], Translation]) -> Callable[[bytes], Any]:
    events = GenericAlias(list, (reduce(or_, types),))  # a list of any of them
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = [
        ("ts", float), ("events", events), ("rank", int | None, None),
    ]  # fmt: skip
    return msgspec.msgpack.Decoder(msgspec.defstruct("Batch", fields, array_like=True)).decode


_ARRAY_OF_FLOAT_FIRST = (b"\x92\xcb", b"\x93\xcb")
_EVENT_OFFSET = 11
"""Where the first event begins in a batch `[float64, short array, ...]`."""


def _first_event_is_map(payload: bytes) -> bool:
    """A look at one byte saves the wrong attempt; wrong guesses cost only time."""
    if payload[:2] not in _ARRAY_OF_FLOAT_FIRST or len(payload) <= _EVENT_OFFSET:
        return True
    return not 0x90 <= payload[_EVENT_OFFSET] <= 0x9F


_decode_anything = msgspec.msgpack.Decoder().decode


def _decode_generic(payload: bytes) -> tuple[float, Sequence[Any], int | None]:
    try:
        batch = _decode_anything(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, TypeError, RecursionError) as error:
        raise MalformedFrame(f"no msgpack: {error}") from None
    if isinstance(batch, dict):
        batch = [batch.get("ts"), batch.get("events"), batch.get("data_parallel_rank")]
    if not isinstance(batch, list) or len(batch) < 2 or not isinstance(batch[1], list):
        raise MalformedFrame("no batch of the form [ts, events, rank]")
    timestamp = float(batch[0]) if isinstance(batch[0], int | float) else 0.0
    rank = batch[2] if len(batch) > 2 and isinstance(batch[2], int) else None
    return timestamp, batch[1], rank
