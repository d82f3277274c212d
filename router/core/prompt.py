"""A prompt that is ready for routing. Made by the token sources; the core neither tokenises nor hashes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from indexer.blocks import BlockHash, HashSpace, Unit


@dataclass(slots=True)
class Prompt:
    """Length and block hashes of a request's prompt; of a batch, the hashes of the first and the length of
    all.

    `num_tokens` is exact for Unit.TOKENS and estimated from the bytes for Unit.BYTES. `chains` holds the
    hashes of the complete blocks (of bytes: see `indexer.byte_blocks`) for each hash space of the model's
    workers. `exact`: the token ids are those that the engine itself will use, of one prompt that is answered
    once, so its cached tokens can be foretold. `cache_salt` is in the hashes already.
    """

    num_tokens: int
    unit: Unit
    chains: Mapping[HashSpace, Sequence[BlockHash]]
    exact: bool
    cache_salt: str = ""
