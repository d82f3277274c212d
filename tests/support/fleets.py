"""Decision cores with workers whose events are sound, and prompts hashed as the gateway does it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from indexer.blocks import TOKEN_BYTES, BlockHash, HashSpace, Unit, chain_block_hashes, pack_tokens, root_seed
from indexer.byte_blocks import chain_byte_blocks
from indexer.events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent
from loadgen.wire import Layout, encode_batch
from policies import make_policy
from policies.types import RoutingRequest, Worker
from router.core.prompt import Prompt
from router.core.routing import RoutingCore
from tests.support.columns import MODEL, make_worker

BLOCK = 16


def make_core(workers: Sequence[Worker], policy: str = "kv", parameters=None, **options) -> RoutingCore:
    core = RoutingCore(policy=make_policy(policy, parameters), **options)
    core.reconcile(workers, now=0.0)
    return core


def silent(worker_id: str, **fields) -> Worker:
    """A worker without events."""
    return make_worker(worker_id, **({"engine": "vllm", "num_blocks": 1000} | fields))


def publishing(worker_id: str, **fields) -> Worker:
    """A worker with events and no replay socket."""
    return silent(worker_id, publishes_events=True, **fields)


def request(request_id: str, model: str = MODEL, *, stream: bool = True) -> RoutingRequest:
    return RoutingRequest(id=request_id, model=model, stream=stream)


def chain_of(tokens: Sequence[int], block_tokens: int = BLOCK, unit: Unit = Unit.TOKENS) -> list[BlockHash]:
    chain = chain_block_hashes if unit is Unit.TOKENS else chain_byte_blocks
    return chain(pack_tokens(tokens), block_tokens * TOKEN_BYTES, root_seed(MODEL, unit=unit))


def prompt_of(
    tokens: Sequence[int],
    *,
    block_sizes: Sequence[int] = (BLOCK,),
    unit: Unit = Unit.TOKENS,
    exact: bool = True,
) -> Prompt:
    """A prompt hashed for each block size."""
    chains = {HashSpace(MODEL, size): chain_of(tokens, size, unit) for size in block_sizes}
    return Prompt(len(tokens), unit, chains, exact and unit is Unit.TOKENS)


class Engine:
    """The publisher's side of one worker: puts events into the core's feed as its socket would."""

    def __init__(self, core: RoutingCore, worker_id: str, block_tokens: int = BLOCK) -> None:
        slot = core.slot_of(worker_id)
        assert slot is not None
        self.core, self.slot, self.block_tokens = core, slot, block_tokens
        self._sequence = 0
        core.feed.connected(slot)
        self.publish([AllBlocksCleared()])

    def publish(self, events: Sequence[KvEvent]) -> None:
        self._send(encode_batch(events, timestamp=0.0, dp_rank=0, layout=Layout.MAPS))

    def _send(self, payload: bytes) -> None:
        self.core.feed.receive(self.slot, self._sequence, payload)
        self._sequence += 1

    def store(self, tokens: Sequence[int]) -> None:
        """Announces the complete blocks of a prompt, named by our own hashes."""
        chain = chain_of(tokens, self.block_tokens)
        complete = list(tokens[: len(chain) * self.block_tokens])
        self.publish([BlockStored(chain, None, complete, self.block_tokens)])

    def remove(self, tokens: Sequence[int], first: int, last: int) -> None:
        """Announces the eviction of blocks `first` to `last` (exclusive) of a prompt."""
        self.publish([BlockRemoved(chain_of(tokens, self.block_tokens)[first:last])])

    def offload(self, tokens: Sequence[int], first: int, last: int, medium: str) -> None:
        """Announces that blocks `first` to `last` (exclusive) of a prompt are in a slower tier too."""
        event = {
            "type": "BlockStored",
            "block_hashes": chain_of(tokens, self.block_tokens)[first:last],
            "parent_block_hash": None,
            "token_ids": [],
            "block_size": self.block_tokens,
            "lora_id": None,
            "medium": medium,
        }
        self._send(msgspec.msgpack.encode([0.0, [event], 0]))
