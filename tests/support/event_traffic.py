"""KV events of engines that work: conversations that share beginnings, caches that forget the least recently
used, one message a request."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from indexer.blocks import TOKEN_BYTES, chain_block_hashes, pack_tokens, root_seed
from indexer.feed import KvFeed
from tests.support.vllm_events import batch, removed, stored

BLOCK_TOKENS = 4
MODEL = "m"


def chain_of(tokens: Sequence[int]) -> list[int]:
    """Our hashes of a prompt."""
    return chain_block_hashes(pack_tokens(tokens), BLOCK_TOKENS * TOKEN_BYTES, root_seed(MODEL))


class Cache:
    """One engine's blocks. Names are its own, so that workers never agree on any."""

    def __init__(self, capacity_blocks: int, seed: int) -> None:
        self._capacity = capacity_blocks
        self._seed = seed
        self._blocks: dict[int, None] = {}  # the least recently used first

    def compute(self, tokens: Sequence[int]) -> bytes | None:
        """The message that follows a request with this prompt, if there is one."""
        names = chain_block_hashes(pack_tokens(tokens), BLOCK_TOKENS * TOKEN_BYTES, self._seed)
        num_cached = next((i for i, name in enumerate(names) if name not in self._blocks), len(names))
        for name in reversed(names):  # ends before beginnings
            self._blocks.pop(name, None)
            self._blocks[name] = None
        events: list[object] = []
        if evicted := self._evict():
            events.append(removed(*evicted))
        if new := names[num_cached:]:
            parent = names[num_cached - 1] if num_cached else None
            rest = tokens[num_cached * BLOCK_TOKENS : len(names) * BLOCK_TOKENS]
            events.append(stored(new, rest, parent=parent, block_tokens=BLOCK_TOKENS))
        return batch(*events) if events else None

    def _evict(self) -> list[int]:
        evicted = []
        while len(self._blocks) > self._capacity:
            name = next(iter(self._blocks))
            del self._blocks[name]
            evicted.append(name)
        return evicted


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt, the worker that computes it and what that worker's publisher says afterwards."""

    worker: int
    tokens: list[int]
    payload: bytes | None


def requests(
    num_workers: int,
    capacity_blocks: int,
    rng: random.Random,
    *,
    num_beginnings: int = 4,
    beginning_blocks: int = 16,
    turn_blocks: int = 8,
    num_live: int = 64,
) -> Iterator[Request]:
    """For ever. A conversation has a worker, begins as many others do, and goes on for some turns; `num_live`
    of them are under way at any time."""
    caches = [Cache(capacity_blocks, rng.getrandbits(60)) for _ in range(num_workers)]
    beginnings = [_blocks(beginning_blocks, rng) for _ in range(num_beginnings)]
    live: list[tuple[int, list[int]]] = []
    while True:
        if len(live) < num_live:
            live.append((rng.randrange(num_workers), list(rng.choice(beginnings))))
        number = rng.randrange(len(live))
        worker, tokens = live[number]
        tokens += _blocks(turn_blocks, rng)
        yield Request(worker, tokens, caches[worker].compute(tokens))
        if rng.random() < 0.15:
            live[number] = live[-1]
            live.pop()


def _blocks(num_blocks: int, rng: random.Random) -> list[int]:
    return [rng.randrange(150_000) for _ in range(num_blocks * BLOCK_TOKENS)]


class Feeder:
    """Hands requests' messages to feeds, numbered for each worker."""

    def __init__(self, feeds: Sequence[KvFeed]) -> None:
        self._feeds = feeds
        self._sequences: dict[int, int] = {}

    def publish(self, request: Request) -> None:
        if request.payload is None:
            return
        sequence = self._sequences.get(request.worker, 0)
        for feed in self._feeds:
            feed.receive(request.worker, sequence, request.payload)
        self._sequences[request.worker] = sequence + 1
