"""Prompts whose tokens can't be had, or not exactly, and what is estimated of those that can."""

from __future__ import annotations

import re

from router.tokens.prompts import PromptBatch
from router.wire.endpoints import Protocol
from router.wire.openai import Slices

TOKENIZED = (Protocol.CHAT, Protocol.COMPLETIONS, Protocol.GENERATE)
"""Protocols whose prompts become tokens; engines turn the others into chats in ways of their own, so those
are bytes by design."""

_MEDIA_PART = re.compile(
    rb'"(?:image(?:_url|_pil|_embeds)?|input_(?:image|audio)|audio_(?:url|embeds)|video(?:_url)?|file)"'
)
"""Types of content parts that the engine expands into tokens which nobody else knows. Within a text such a
word would have its quotes escaped."""

_MEDIA_FIELDS = ("image_data", "audio_data", "video_data")


class NoTokens(Exception):
    """No tokens are to be had for a prompt; the first argument is a word for the metrics."""

    @property
    def reason(self) -> str:
        return str(self.args[0])


def refuse_media_fields(prompt: Slices) -> None:
    """Raises NoTokens for a prompt with media beside its text."""
    if any(name in prompt for name in _MEDIA_FIELDS):
        raise NoTokens("media")


def refuse_media(prompt: Slices) -> None:
    """Raises NoTokens for a prompt with media beside its text or in its messages, which are not decoded."""
    refuse_media_fields(prompt)
    if _MEDIA_PART.search(prompt.get("messages", b"")):
        raise NoTokens("media")


def num_other_tokens(batch: PromptBatch | None, num_first_tokens: int) -> int:
    """Tokens of a batch's other texts, estimated at the first one's rate."""
    if batch is None or not batch.others:
        return 0
    return num_first_tokens * batch.num_other_bytes() // len(batch.first)
