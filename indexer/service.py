"""The index without a gateway: it follows workers by their KV events and says who holds which prompt. I/O.

How it is asked over HTTP is in `http`; where its flags come from is the command's matter.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import zmq

from indexer.adapters import ADAPTERS
from indexer.blocks import TOKEN_BYTES, BlockHash, Layout, chain_block_hashes, pack_tokens, root_seed
from indexer.events import Tier
from indexer.feed import FeedStats, KvFeed
from indexer.limits import INDEX_BYTES, QUERY_SLICE_TOKENS, SERVICE_WORKERS, TICK_SECONDS
from indexer.radix import OverlapScores, Slot
from indexer.subscription import Subscription
from indexer.trust import Trust, TrustLevel
from indexer.warm_start import WarmStart

_logger = logging.getLogger("kvgate.index")

BLOCK_TOKENS = 16
"""Until a worker's first event says otherwise: vLLM's own default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedWorker:
    """A publisher of KV events. `events` and `replay` are ZMQ endpoints; `model` is the base model, under
    whose name its blocks are asked for."""

    name: str
    events: str
    replay: str | None = None
    model: str
    engine: str = "vllm"
    block_size: int = BLOCK_TOKENS
    dp_rank: int | None = None
    topic: str = ""


@dataclass(frozen=True, slots=True)
class Holding:
    """What one worker holds of a prompt, in its own blocks."""

    worker: FollowedWorker
    layout: Layout
    trust: Trust
    device: int
    host: int
    disk: int


@dataclass(slots=True, eq=False)
class _Member:
    worker: FollowedWorker
    slot: Slot
    layout: Layout
    subscription: Subscription


class IndexService:
    """Workers by name, each with a slot in one feed. To be used from one event loop."""

    def __init__(self, max_bytes: int = INDEX_BYTES, warm_start: WarmStart | None = None) -> None:
        """`warm_start`: what workers are begun with."""
        self.feed = KvFeed(max_bytes=max_bytes)
        self._warm_start = warm_start or WarmStart()
        self._members: dict[str, _Member] = {}
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._ticker: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._ticker = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)

    def stop(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        for name in list(self._members):
            self.unregister(name)

    def register(self, worker: FollowedWorker) -> None:
        """Follow a worker from now on. Raises ValueError in words for one that can't be followed."""
        if worker.engine not in ADAPTERS:
            raise ValueError(f"engine must be one of {', '.join(sorted(ADAPTERS))}, not {worker.engine!r}")
        if worker.name in self._members:
            raise ValueError(f"a worker {worker.name!r} is followed already; unregister it first")
        if len(self._members) >= SERVICE_WORKERS:
            raise ValueError(f"{SERVICE_WORKERS} workers are followed already, which is the most")
        member = self._members[worker.name] = self._admit(worker)
        member.subscription.start()
        trust = self.feed.trust(member.slot)
        if trust.level is TrustLevel.PREDICTED:
            self.unregister(worker.name)
            raise ValueError(trust.reason)

    def unregister(self, name: str) -> None:
        """Forget a worker, with what it holds. Raises KeyError for one that is not followed."""
        member = self._members.pop(name)
        member.subscription.stop()
        self.feed.remove_publisher(member.slot)

    @property
    def slots(self) -> dict[str, Slot]:
        """Of the workers, by name."""
        return {name: member.slot for name, member in sorted(self._members.items())}

    def workers(self) -> Iterator[tuple[FollowedWorker, Layout, Trust, FeedStats]]:
        """By name."""
        for _, member in sorted(self._members.items()):
            slot = member.slot
            yield member.worker, member.layout, self.feed.trust(slot), self.feed.stats(slot)

    async def ask_for_tokens(
        self, token_ids: Sequence[int], *, model: str, adapter: str = "", cache_salt: str = ""
    ) -> list[Holding]:
        """What each worker of that model holds of a prompt, by name. Token ids are u32."""
        seed = root_seed(model, adapter=adapter, cache_salt=cache_salt)
        holdings: list[Holding] = []
        for layout in {member.layout for member in self._of_model(model)}:
            chain = await _chain(token_ids, layout, seed)
            holdings += self._holdings(
                chain, [each for each in self._of_model(model) if each.layout == layout]
            )
        return sorted(holdings, key=lambda holding: holding.worker.name)

    def ask_for_blocks(self, hashes: Sequence[BlockHash]) -> list[Holding]:
        """What each worker holds of a prompt that is given by its block hashes, by name."""
        holdings = self._holdings(hashes, list(self._members.values()))
        return sorted(holdings, key=lambda holding: holding.worker.name)

    def snapshot(self) -> Iterator[bytes]:
        """Of all workers, in pieces."""
        return self.feed.snapshot(self._names())

    def dump(self) -> Iterator[list[tuple[Tier, BlockHash, list[str]]]]:
        """Every block with its holders' names; see KvFeed.dump. Two indexes that hold the same say the
        same."""
        return self.feed.dump(self._names())

    def _of_model(self, model: str) -> list[_Member]:
        return [member for member in self._members.values() if member.worker.model == model]

    def _names(self) -> dict[Slot, str]:
        return {member.slot: name for name, member in self._members.items()}

    def _admit(self, worker: FollowedWorker) -> _Member:
        taken = {member.slot for member in self._members.values()}
        slot = 0
        while slot in taken or not self.feed.is_free(slot):
            slot += 1
        self.feed.add_publisher(
            slot,
            engine=worker.engine,
            base_model=worker.model,
            block_tokens=worker.block_size,
            can_replay=worker.replay is not None,
            dp_rank=worker.dp_rank,
        )
        subscription = Subscription(
            self.feed,
            slot,
            endpoint=worker.events,
            replay_endpoint=worker.replay,
            topic=worker.topic,
            context=self._context,
            on_layout=lambda: self._adopt_layout(worker.name),
            on_refusal=lambda reason: self.feed.refuse(slot, reason),
            snapshot=self._warm_start.take(worker.name),
        )
        return _Member(worker, slot, Layout(worker.block_size), subscription)

    def _holdings(self, hashes: Sequence[BlockHash], members: Sequence[_Member]) -> Iterator[Holding]:
        scores = self.feed.overlap(hashes, sum(1 << member.slot for member in members))
        for member in members:
            yield Holding(
                member.worker, member.layout, self.feed.trust(member.slot), *_of_slot(scores, member.slot)
            )

    def _adopt_layout(self, name: str) -> None:
        """From now on prompts for it are cut as its events show."""
        member = self._members.get(name)
        layout = None if member is None else self.feed.layout(member.slot)
        if member is None or layout is None or layout == member.layout:
            return
        _logger.info("worker %s stores blocks of %d tokens", name, layout.block_tokens)
        member.layout = layout
        self.feed.expect(member.slot, layout)

    def _tick(self) -> None:
        self.feed.sweep()
        self.start()


async def _chain(token_ids: Sequence[int], layout: Layout, seed: BlockHash) -> list[BlockHash]:
    """The hashes of a prompt's blocks, in slices between which others have their turn."""
    size, lookahead = layout
    num_blocks = max(0, len(token_ids) - lookahead) // size
    step = max(1, QUERY_SLICE_TOKENS // size)
    hashes: list[BlockHash] = []
    for first in range(0, num_blocks, step):
        end = min(first + step, num_blocks) * size + lookahead
        packed = pack_tokens(token_ids[first * size : end])
        seed = hashes[-1] if hashes else seed
        hashes += chain_block_hashes(packed, size * TOKEN_BYTES, seed, (), lookahead * TOKEN_BYTES)
        await asyncio.sleep(0)
    return hashes


def _of_slot(scores: OverlapScores, slot: Slot) -> tuple[int, int, int]:
    return scores.device.get(slot, 0), scores.host.get(slot, 0), scores.disk.get(slot, 0)
