"""One request inside the modelled engine, with its words or without them, and the engine's own block hashes.

An EngineSequence is sizes and names of blocks: all that scheduling needs, and all that a published trace
tells. A TokenSequence has its words too, and generates more. Its hashes are opaque to every router: SHA-256
chained over the blocks, its last eight bytes as an unsigned integer. They are on purpose not the router's
own.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from indexer.events import BlockStored
from loadgen.block_pool import BlockId, EngineBlockHash
from loadgen.tokenizer import FIRST_WORD, NUM_WORDS


@dataclass(slots=True, eq=False, kw_only=True)
class EngineSequence:
    """`hashes`: of the complete blocks of its tokens, as far as their content is known.

    While it decodes, `num_generated` and `num_computed` are those of decode step `settled_at` of its engine;
    `Decoders` bring them up to date.
    """

    id: str
    num_prompt_tokens: int = 0
    max_tokens: int
    block_tokens: int
    hashes: Sequence[EngineBlockHash] = ()
    cached_tokens: int | None = None
    """Prompt tokens found in the cache at first admission, as `usage` reports them; None before."""
    num_generated: int = 0
    num_computed: int = 0
    num_scheduled: int = 0
    """Tokens that the step in progress computes for it."""
    finished: bool = False
    num_told: int = 0
    """Of the generated tokens, how many its router knows of."""
    block_ids: list[BlockId] = field(default_factory=list)
    num_registered: int = 0
    """Leading blocks whose content is in the prefix cache."""
    transferred_tokens: int = 0
    """Prompt tokens whose KV was computed elsewhere and is here when it is admitted; the last is computed all
    the same. Used up by a preemption."""
    is_handed_over: bool = False
    """Whether its blocks stay in use behind its last token, until `EngineModel.release`."""
    settled_at: int = 0
    finishes_at: int = 0
    """The decode step of its engine after which it has all its tokens."""
    grows_at: int = 0
    """The decode step of its engine for which it needs one more block."""

    @property
    def num_tokens(self) -> int:
        """Prompt and generated."""
        return self.num_prompt_tokens + self.num_generated

    def stored(self, first: int, end: int) -> BlockStored:
        """The event that announces its blocks from `first` up to `end`."""
        return BlockStored(
            block_hashes=self.hashes[first:end],
            parent_hash=self.hashes[first - 1] if first else None,
            token_ids=(),
            block_tokens=self.block_tokens,
        )


@dataclass(slots=True, eq=False, kw_only=True)
class TokenSequence(EngineSequence):
    """`tokens` is the prompt and, behind it, what was generated. Adapter and salt are empty when there are
    none."""

    tokens: list[int]
    adapter: str = ""
    cache_salt: str = ""
    digest: bytes
    """Digest of the last complete block; before the first one, the engine's seed."""
    reported_cached_tokens: int | None = None
    """What `usage` says instead, of a prompt that another engine has computed."""
    chain: list[EngineBlockHash] = field(default_factory=list)
    """The same list as `hashes`, which grows with what is generated."""

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.tokens)
        self.hashes = self.chain
        self._extend_hashes()

    @property
    def last_token(self) -> int:
        return self.tokens[-1]

    def generate(self) -> None:
        """Appends the next token: a word that depends on the prompt and the position only."""
        num_generated = len(self.tokens) - self.num_prompt_tokens
        offset = self.num_prompt_tokens * 31 + self.tokens[self.num_prompt_tokens - 1] + num_generated * 7
        self.tokens.append(FIRST_WORD + offset % NUM_WORDS)
        if not len(self.tokens) % self.block_tokens:
            self._extend_hashes()

    def stored(self, first: int, end: int) -> BlockStored:
        size = self.block_tokens
        return BlockStored(
            block_hashes=self.hashes[first:end],
            parent_hash=self.hashes[first - 1] if first else None,
            token_ids=self.tokens[first * size : end * size],
            block_tokens=size,
            adapter=self.adapter,
            cache_salt="" if first else self.cache_salt,
        )

    def _extend_hashes(self) -> None:
        size = self.block_tokens
        start = len(self.chain) * size
        packed = array("I", self.tokens[start:]).tobytes()
        identity = self.adapter.encode()
        for offset in range(0, len(packed) - size * 4 + 1, size * 4):
            salt = b"" if self.chain else self.cache_salt.encode()
            content = b"".join((self.digest, packed[offset : offset + size * 4], identity, salt))
            self.digest = sha256(content).digest()
            self.chain.append(int.from_bytes(self.digest[-8:], "big"))
