"""One request inside the modelled engine, and the engine's own block hashes.

The hashes are opaque to every router: SHA-256 chained over the blocks, its last eight bytes as an unsigned
integer. They are on purpose not the router's own.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from hashlib import sha256

from loadgen.block_pool import BlockId, EngineBlockHash
from loadgen.tokenizer import FIRST_WORD, NUM_WORDS


@dataclass(slots=True, eq=False, kw_only=True)
class EngineSequence:
    """`tokens` is the prompt and, behind it, what was generated. Adapter and salt are empty when there are
    none."""

    id: str
    tokens: list[int]
    max_tokens: int
    block_tokens: int
    adapter: str = ""
    cache_salt: str = ""
    digest: bytes
    """Digest of the last complete block; before the first one, the engine's seed."""
    num_prompt_tokens: int = 0
    cached_tokens: int | None = None
    """Prompt tokens found in the cache at first admission, as `usage` reports them; None before."""
    num_generated: int = 0
    num_computed: int = 0
    num_scheduled: int = 0
    """Tokens that the step in progress computes for it."""
    finished: bool = False
    block_ids: list[BlockId] = field(default_factory=list)
    hashes: list[EngineBlockHash] = field(default_factory=list)
    """Of the complete blocks of `tokens`."""
    num_registered: int = 0
    """Leading blocks whose content is in the prefix cache."""

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.tokens)
        self._extend_hashes()

    @property
    def last_token(self) -> int:
        return self.tokens[-1]

    def generate(self) -> None:
        """Appends the next token: a word that depends on the prompt and the position only."""
        offset = (
            self.num_prompt_tokens * 31 + self.tokens[self.num_prompt_tokens - 1] + self.num_generated * 7
        )
        self.tokens.append(FIRST_WORD + offset % NUM_WORDS)
        self.num_generated += 1
        if not len(self.tokens) % self.block_tokens:
            self._extend_hashes()

    def _extend_hashes(self) -> None:
        size = self.block_tokens
        start = len(self.hashes) * size
        packed = array("I", self.tokens[start:]).tobytes()
        identity = self.adapter.encode()
        for offset in range(0, len(packed) - size * 4 + 1, size * 4):
            salt = b"" if self.hashes else self.cache_salt.encode()
            content = b"".join((self.digest, packed[offset : offset + size * 4], identity, salt))
            self.digest = sha256(content).digest()
            self.hashes.append(int.from_bytes(self.digest[-8:], "big"))
