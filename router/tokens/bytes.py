"""Prompts as bytes: no tokenizer, no call to a worker, and comparable only with our own earlier decisions.

The text is cut into blocks at `TOKEN_BYTES` bytes a token, see `indexer.byte_blocks`; the core corrects that
rate by what engines report. How a chat becomes text is the business of `router.tokens.canonical`.
"""

from __future__ import annotations

import msgspec

from indexer.blocks import TOKEN_BYTES, Unit
from router.core.catalogue import Resolution
from router.core.prompt import Prompt
from router.tokens.base import TokenHost
from router.tokens.canonical import canonical_text
from router.tokens.hashing import Pace, chain_byte_hashes, root_seeds
from router.tokens.prompts import PromptBatch, batch_of, prompt_of_ids
from router.wire.endpoints import Endpoint
from router.wire.openai import ParsedBody

_decode_text = msgspec.json.Decoder(str).decode


class BytesTokens:
    """The token source `bytes`. Token ids that a client sends are used as they are."""

    def __init__(self, host: TokenHost) -> None:
        self._host = host

    async def prompt(self, parsed: ParsedBody, endpoint: Endpoint, resolution: Resolution) -> Prompt | None:
        batch = batch_of(parsed.prompt)
        if batch is not None and batch.are_ids:
            return await prompt_of_ids(batch, parsed, resolution, self._host)
        return await self.prompt_of_text(batch, parsed, resolution)

    async def prompt_of_text(
        self, batch: PromptBatch | None, parsed: ParsedBody, resolution: Resolution
    ) -> Prompt | None:
        """The text of a batch, or of the chat in `parsed`, as a prompt of bytes; None where there is none."""
        text = memoryview(canonical_text(parsed.prompt)) if batch is None else _text_of(batch.first)
        if not text:
            return None
        num_bytes = len(text) + (batch.num_other_bytes() if batch is not None else 0)
        seeds = root_seeds(self._host, parsed, resolution, Unit.BYTES)
        return Prompt(
            num_tokens=-(-num_bytes // TOKEN_BYTES),
            unit=Unit.BYTES,
            chains=await chain_byte_hashes(text, seeds, Pace()),
            exact=False,
        )


def _text_of(literal: bytes) -> memoryview:
    """A JSON string's text. Without escapes it stands there as it is."""
    return memoryview(_decode_text(literal).encode()) if b"\\" in literal else memoryview(literal)[1:-1]
