"""The prompts within a body: one or a batch, as text or as token ids.

Token ids that a client sends are used as they are, by every token source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from indexer.blocks import TOKEN_BYTES, Unit, pack_tokens
from router.core.catalogue import Resolution
from router.core.prompt import Prompt
from router.tokens.base import TokenHost
from router.tokens.hashing import Pace, chain_hashes, root_seeds
from router.tokens.limits import JSON_PIECE_BYTES, TOKEN_MICROSECONDS
from router.wire.openai import ParsedBody, Slices


class NotTokenIds(ValueError):
    """A list that was to hold token ids holds something else."""


@dataclass(frozen=True, slots=True)
class PromptBatch:
    """The prompts of one request as JSON, in order: all of them texts, or all of them lists of token ids."""

    first: bytes
    others: Sequence[msgspec.Raw]
    are_ids: bool

    def num_other_ids(self) -> int:
        """Token ids in the lists after the first."""
        return sum(bytes(raw).count(b",") + 1 for raw in self.others)

    def num_other_bytes(self) -> int:
        """Bytes of the texts after the first, as JSON."""
        return sum(len(memoryview(raw)) for raw in self.others)


def batch_of(prompt: Slices) -> PromptBatch | None:
    """The batch in a body's fields, or None where there is neither a text nor a list of ids: in a chat."""
    for name in ("prompt", "input_ids", "text"):
        if name in prompt:
            return _split(bytes(prompt[name]))
    return None


_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode


def _split(raw: bytes) -> PromptBatch | None:
    if raw[:1] == b'"':
        return PromptBatch(raw, (), are_ids=False)
    if raw[:1] != b"[":
        return None
    lead = raw[1:].lstrip()[:1] if raw[1:2].isspace() else raw[1:2]
    if lead not in (b'"', b"["):
        return PromptBatch(raw, (), are_ids=True) if lead != b"]" else None
    first, *others = _decode_items(raw)
    return PromptBatch(bytes(first), others, are_ids=lead == b"[")


_ALTERING_FIELDS = ("truncate_prompt_tokens", "prompt_embeds", "image_data", "audio_data", "video_data")
"""With these the engine computes on other tokens than those of the text or the ids."""


def is_foretellable(parsed: ParsedBody, batch: PromptBatch | None) -> bool:
    """One prompt, unaltered, answered once: what the engine then reports as cached speaks of it alone."""
    is_one = parsed.n == 1 and (batch is None or not batch.others)
    return is_one and not any(name in parsed.prompt for name in _ALTERING_FIELDS)


async def prompt_of_ids(
    batch: PromptBatch, parsed: ParsedBody, resolution: Resolution, host: TokenHost
) -> Prompt | None:
    """Token ids as the client sent them; None where the list holds something else."""
    pace = Pace()
    try:
        packed = await pack_json_ids(batch.first, pace)
    except NotTokenIds:
        return None
    seeds = root_seeds(host, parsed, resolution, Unit.TOKENS)
    return Prompt(
        num_tokens=len(packed) // TOKEN_BYTES + batch.num_other_ids(),
        unit=Unit.TOKENS,
        chains=await chain_hashes(packed, seeds, pace),
        exact=is_foretellable(parsed, batch),
        cache_salt=parsed.cache_salt,
    )


_TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
_decode_ids = msgspec.json.Decoder(list[_TokenId]).decode


async def pack_json_ids(raw: bytes, pace: Pace) -> bytes:
    """A flat JSON list of token ids, packed for hashing. Raises NotTokenIds."""
    packed = bytearray()
    for piece in _pieces(raw):
        try:
            ids = _decode_ids(piece)
        except (msgspec.DecodeError, RecursionError) as error:
            raise NotTokenIds(str(error)) from None
        packed += pack_tokens(ids)
        await pace.spend(len(ids) * TOKEN_MICROSECONDS)
    return bytes(packed)


def _pieces(raw: bytes) -> Iterator[bytes]:
    """Cut a flat list at commas into lists of bounded length."""
    start = 0
    while (cut := raw.find(b",", start + JSON_PIECE_BYTES)) >= 0:
        yield (b"[" if start else b"") + raw[start:cut] + b"]"
        start = cut + 1
    yield (b"[" if start else b"") + raw[start:]
