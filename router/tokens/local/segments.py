"""Token ids by the text that they were made of, within a budget of bytes; the least recently used go
first."""

from __future__ import annotations

from collections import OrderedDict

from xxhash import xxh3_128_digest

from router.tokens.local.limits import SEGMENT_BYTES, SEGMENT_ENTRY_BYTES


class SegmentCache:
    """(text, how it was encoded) -> packed token ids. Equal digests of 128 bits are taken for equal texts.

    One serves several tokenizers: `space` keeps them apart, and the two ways of encoding of one.
    """

    def __init__(self, capacity_bytes: int = SEGMENT_BYTES) -> None:
        self._capacity_bytes = capacity_bytes
        self._entries: OrderedDict[tuple[int, bytes], bytes] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, space: int, text: str) -> bytes | None:
        """The ids, now the most recently used. Raises UnicodeEncodeError for what is no text (a lone
        surrogate)."""
        key = (space, xxh3_128_digest(text.encode()))
        packed = self._entries.get(key)
        if packed is not None:
            self._entries.move_to_end(key)
        return packed

    def put(self, space: int, text: str, packed: bytes) -> None:
        """Remember ids; those that exceed the whole budget leave at once."""
        key = (space, xxh3_128_digest(text.encode()))
        if (former := self._entries.pop(key, None)) is not None:
            self.num_bytes -= SEGMENT_ENTRY_BYTES + len(former)
        self._entries[key] = packed
        self.num_bytes += SEGMENT_ENTRY_BYTES + len(packed)
        while self.num_bytes > self._capacity_bytes:
            _, dropped = self._entries.popitem(last=False)
            self.num_bytes -= SEGMENT_ENTRY_BYTES + len(dropped)
