"""The state of a feed as bytes, and back: for a start that need not learn everything anew. No I/O.

A snapshot is only ever a claim about the past. What is loaded counts when its engine has shown, by a replay
from the last message known, that it is still the process that was listened to then; the sequencer sees to
that, and what can't be verified is forgotten.

Layout: MAGIC, a version byte, then sections of length (u32), xxh3-64 (u64) and msgpack. A publisher is a
section of its own that those of its blocks follow, in runs, so that what belongs together is given up
together later. An end with the number of sections shows that nothing is missing.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from struct import Struct as Packing
from sys import byteorder

import msgspec
from xxhash import xxh3_64_intdigest

from indexer.events import Tier
from indexer.keys import KeyMap, KeyMapCopy
from indexer.limits import SNAPSHOT_SECTION_BLOCKS, SNAPSHOT_SECTION_BYTES
from indexer.runs import Key
from indexer.sequencer import Position

MAGIC = b"kvgate-index"
VERSION = 1

_FRAME = Packing("<IQ")


class SnapshotError(ValueError):
    """The bytes are no snapshot that can be read; in words why."""


class PublisherHeader(msgspec.Struct, tag="publisher", array_like=True, frozen=True):
    """Whose blocks follow, and up to which of its messages."""

    name: str
    engine: str
    base_model: str
    block_tokens: int
    lookahead_tokens: int
    group: int | None
    position: Position


class BlockRun(msgspec.Struct, array_like=True, frozen=True):
    """Blocks that follow each other and `parent`: packed keys and hashes, u64."""

    parent: Key | None
    keys: bytes
    hashes: bytes


class RunSection(msgspec.Struct, tag="runs", array_like=True, frozen=True):
    tier: Tier
    runs: list[BlockRun]


class CopySection(msgspec.Struct, tag="copies", array_like=True, frozen=True):
    """Copies beyond the first."""

    tier: Tier
    keys: bytes
    counts: bytes


class _End(msgspec.Struct, tag="end", array_like=True, frozen=True):
    num_sections: int


BlockSection = RunSection | CopySection
Section = PublisherHeader | RunSection | CopySection | _End

_decode = msgspec.msgpack.Decoder(Section).decode
_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class PublisherSnapshot:
    """One publisher's part of a snapshot; its blocks are decoded when they are wanted."""

    header: PublisherHeader
    _sections: list[bytes] = field(default_factory=list)

    def sections(self) -> Iterator[BlockSection]:
        for payload in self._sections:
            section = _decode(payload)
            assert isinstance(section, BlockSection)
            yield section


class SnapshotWriter:
    """Turns sections into bytes, with what comes before and after them."""

    def __init__(self) -> None:
        self._num_sections = 0

    def begin(self) -> bytes:
        return MAGIC + bytes([VERSION])

    def section(self, section: Section) -> bytes:
        self._num_sections += 1
        payload = _encode(section)
        return _FRAME.pack(len(payload), xxh3_64_intdigest(payload)) + payload

    def end(self) -> bytes:
        return self.section(_End(self._num_sections))


def read_snapshot(data: bytes) -> dict[str, PublisherSnapshot]:
    """By name. Raises SnapshotError for anything but a whole snapshot of this version."""
    if data[: len(MAGIC)] != MAGIC:
        raise SnapshotError("no snapshot of an index")
    if len(data) == len(MAGIC) or data[len(MAGIC)] != VERSION:
        raise SnapshotError(
            f"version {data[len(MAGIC) :][:1].hex() or 'missing'}, this release reads {VERSION}"
        )
    snapshots: dict[str, PublisherSnapshot] = {}
    current: PublisherSnapshot | None = None
    for num_sections, payload in enumerate(_payloads(data, len(MAGIC) + 1)):
        try:
            section = _decode(payload)
        except (msgspec.DecodeError, ValueError) as error:
            raise SnapshotError(f"section {num_sections} can't be read: {error}") from None
        if isinstance(section, _End):
            if section.num_sections != num_sections:
                raise SnapshotError(f"{num_sections} sections where {section.num_sections} were written")
            return snapshots
        if isinstance(section, PublisherHeader):
            current = snapshots[section.name] = PublisherSnapshot(section)
        elif current is None:
            raise SnapshotError("blocks without a publisher")
        else:
            current._sections.append(payload)
    raise SnapshotError("it breaks off")


def _payloads(data: bytes, start: int) -> Iterator[bytes]:
    while start + _FRAME.size <= len(data):
        length, checksum = _FRAME.unpack_from(data, start)
        start += _FRAME.size
        payload = data[start : start + length]
        if (
            length > SNAPSHOT_SECTION_BYTES
            or len(payload) != length
            or xxh3_64_intdigest(payload) != checksum
        ):
            raise SnapshotError(f"it is damaged at byte {start}")
        yield payload
        start += length


def pack(numbers: list[int]) -> bytes:
    packed = array("Q", numbers)
    if byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack(packed: bytes) -> list[int]:
    numbers = array("Q", packed)
    if byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()


def map_sections(tier: Tier, copy: KeyMapCopy) -> Iterator[BlockSection]:
    """Runs joined into sections, and long ones cut, of about SNAPSHOT_SECTION_BLOCKS; then the copies."""
    pieces: list[BlockRun] = []
    room = SNAPSHOT_SECTION_BLOCKS
    held: list[Key] = []
    for parent, keys, hashes in copy.ordered():
        held += (key for key in keys if key in copy.copies)
        for start in range(0, len(keys), SNAPSHOT_SECTION_BLOCKS):
            end = min(start + SNAPSHOT_SECTION_BLOCKS, len(keys))
            before = keys[start - 1] if start else parent
            pieces.append(BlockRun(before, pack(keys[start:end]), pack(hashes[start:end])))
            room -= end - start
            if room <= 0:
                yield RunSection(tier, pieces)
                pieces, room = [], SNAPSHOT_SECTION_BLOCKS
    if pieces:
        yield RunSection(tier, pieces)
    for start in range(0, len(held), SNAPSHOT_SECTION_BLOCKS):
        some = held[start : start + SNAPSHOT_SECTION_BLOCKS]
        yield CopySection(tier, pack(some), pack([copy.copies[key] for key in some]))


def load_section(section: BlockSection, key_map: KeyMap) -> None:
    """Its blocks are held, as `section.tier` says of which map."""
    if isinstance(section, CopySection):
        for key, copies in zip(unpack(section.keys), unpack(section.counts), strict=True):
            key_map.restore_copies(key, copies)
        return
    for run in section.runs:
        key_map.restore(unpack(run.keys), unpack(run.hashes), run.parent)
