"""KV events between a simulated engine and the core: block hashes and nothing else.

A payload is signed 64-bit numbers: the time in microseconds, then runs. A run of stored blocks is their
number, what the first of them continues (-1: nothing), and their hashes; a run of removed ones is their
number, negative, and their hashes. The hashes are the router's own, since the trace names the blocks, so
nothing needs to be tokenised or hashed anew.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping

from indexer.adapters import Adapter, MalformedFrame
from indexer.events import AllBlocksCleared, BlockRemoved, EventBatch, HashedBlocks, KvEvent

ENGINE = "simulated"
"""The engine whose adapter this is; no probe ever finds one."""

_NO_PARENT = -1


def encode_events(events: Iterable[KvEvent], now: float) -> bytes:
    """One message. `now` in seconds."""
    numbers = array("q", (round(now * 1e6),))
    for event in events:
        assert not isinstance(event, AllBlocksCleared), "a simulated engine restarts, it is not reset"
        if isinstance(event, BlockRemoved):
            numbers.append(-len(event.block_hashes))
        else:
            numbers.append(len(event.block_hashes))
            numbers.append(_NO_PARENT if event.parent_hash is None else event.parent_hash)  # type: ignore[arg-type]
        numbers.extend(event.block_hashes)  # type: ignore[arg-type]
    return numbers.tobytes()


def decode_events(payload: bytes) -> EventBatch:
    """Raises MalformedFrame for what `encode_events` did not make."""
    numbers = array("q")
    try:
        numbers.frombytes(payload)
        return EventBatch(list(_runs(numbers.tolist())), numbers[0] / 1e6)
    except (ValueError, IndexError) as error:
        raise MalformedFrame(str(error)) from error


def _runs(numbers: list[int]) -> Iterable[HashedBlocks]:
    at = 1
    while at < len(numbers):
        length = numbers[at]
        begin = at + 2 if length > 0 else at + 1
        at = begin + abs(length)
        if not length or at > len(numbers):
            raise ValueError("a run that is empty or cut short")
        hashes = numbers[begin:at]
        if length < 0:
            yield HashedBlocks(hashes, is_removal=True)
        else:
            parent = numbers[begin - 1]
            yield HashedBlocks(hashes, None if parent == _NO_PARENT else parent)


ADAPTERS: Mapping[str, Adapter] = {ENGINE: Adapter(decode_events, keeps_copies=True)}
"""What a core reads that stands before simulated engines."""
