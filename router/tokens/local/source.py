"""Tokens made in the gateway itself: no call to a worker, and the next turn of a chat costs its new text.

A prompt whose tokens can't be made here becomes a prompt of bytes and is counted; the request goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from array import array
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from indexer.blocks import TOKEN_BYTES, Unit
from router.core.catalogue import Resolution
from router.core.prompt import Prompt
from router.tokens.base import TokenHost
from router.tokens.bytes import BytesTokens
from router.tokens.hashing import Pace, chain_hashes, root_seeds
from router.tokens.limits import TOKENIZE_SECONDS
from router.tokens.local.conversation import Manner
from router.tokens.local.limits import (
    ENCODER_THREADS,
    LONGEST_BODY_BYTES,
    LOOP_BODY_BYTES,
    LOOP_CHARACTERS,
    WAITING_PROMPTS,
)
from router.tokens.local.models import LocalModels
from router.tokens.probe import PROBES
from router.tokens.prompts import PromptBatch, batch_of, is_foretellable, prompt_of_ids
from router.tokens.refusals import TOKENIZED, NoTokens, num_other_tokens, refuse_media_fields
from router.wire.endpoints import Endpoint, Protocol
from router.wire.openai import ParsedBody, Slices

if TYPE_CHECKING:
    from router.tokens.local.encoder import Encoder
    from router.tokens.local.model import LocalModel

_logger = logging.getLogger("kvgate.tokens")

NO_TEXT = "no_text"
"""Why there are no tokens where nobody promised any: by the shape of its prompt."""

NO_TOKENIZER = "no_tokenizer"
"""Why there are none where somebody did."""


class LocalTokens:
    """The token source `local`. The models stay their owner's."""

    def __init__(self, host: TokenHost, models: LocalModels) -> None:
        self._host = host
        self._models = models
        self._bytes = BytesTokens(host)
        self._turns = _Turns()
        self._warned: set[str] = set()
        """Base models, as many as the fleet serves."""
        host.on_change(self._look)

    async def prompt(self, parsed: ParsedBody, endpoint: Endpoint, resolution: Resolution) -> Prompt | None:
        try:
            return await self.exact_prompt(parsed, endpoint, resolution)
        except NoTokens as error:
            if error.reason != NO_TEXT:
                self._host.fell_back(error.reason)
            if error.reason == NO_TOKENIZER:
                self._warn(resolution.base_model)
        return await self._bytes.prompt(parsed, endpoint, resolution)

    async def exact_prompt(
        self, parsed: ParsedBody, endpoint: Endpoint, resolution: Resolution
    ) -> Prompt | None:
        """The prompt in tokens. Raises NoTokens where they can't be made here."""
        batch = batch_of(parsed.prompt)
        if batch is not None and batch.are_ids:
            return await prompt_of_ids(batch, parsed, resolution, self._host)
        is_chat = endpoint.protocol is Protocol.CHAT
        if endpoint.protocol not in TOKENIZED or (batch is None and not is_chat):
            raise NoTokens(NO_TEXT)
        model = self._model(resolution.base_model)
        refuse_media_fields(parsed.prompt)
        try:
            async with asyncio.timeout(TOKENIZE_SECONDS):
                text = await self._text(model, batch, parsed.prompt, self._manner(resolution.base_model))
                special = model.wants_special_tokens(parsed.prompt, default=not is_chat)
                packed = await self._encoded(model.encoder, text, add_special_tokens=special)
        except TimeoutError:
            raise NoTokens("timeout") from None
        num_tokens = len(packed) // TOKEN_BYTES
        seeds = root_seeds(self._host, parsed, resolution, Unit.TOKENS)
        return Prompt(
            num_tokens=num_tokens + num_other_tokens(batch, num_tokens),
            unit=Unit.TOKENS,
            chains=await chain_hashes(packed, seeds, Pace()),
            exact=is_foretellable(parsed, batch),
            cache_salt=parsed.cache_salt,
        )

    def tokens_of_probe(self, model: str, protocol: Protocol = Protocol.CHAT) -> Sequence[int] | None:
        """See `router.tokens.probe.ProbeTokens`."""
        local = self._models.get(model)
        if local is None:
            return None
        probe, is_chat = PROBES[protocol], protocol is Protocol.CHAT
        try:
            text = local.text(batch_of(probe), probe, self._manner(model))
        except NoTokens:
            return None
        return array("I", local.encoder.encode(text, add_special_tokens=not is_chat)).tolist()

    def has_tokenizer(self, base_model: str) -> bool:
        """Whether it is loaded; where it was not looked for yet, that begins."""
        if self._models.get(base_model) is not None:
            return True
        if (hints := self._host.models().get(base_model)) is not None:
            self._models.look_for(base_model, hints.places)
        return False

    def text_of(self, base_model: str, token: int) -> str:
        """A token as its model's vocabulary spells it; "" where that is not known."""
        model = self._models.get(base_model)
        return model.encoder.text_of(token) if model is not None else ""

    def _warn(self, base_model: str) -> None:
        """Once for each model: who asks for local tokens gets no exact overlap without them."""
        if base_model not in self._warned:
            self._warned.add(base_model)
            _logger.warning("%s: routed by bytes, no tokenizer of it is here: give --tokenizer", base_model)

    def _look(self) -> None:
        """Tokenizers are loaded where exact overlap is to be had; elsewhere when a request asks."""
        for base_model, hints in self._host.models().items():
            if self._host.wants_exact_overlap(base_model):
                self._models.look_for(base_model, hints.places)

    def _model(self, base_model: str) -> LocalModel:
        if self.has_tokenizer(base_model) and (model := self._models.get(base_model)) is not None:
            return model
        raise NoTokens("loading" if self._models.is_looking_for(base_model) else NO_TOKENIZER)

    def _manner(self, base_model: str) -> Manner:
        hints = self._host.models().get(base_model)
        return Manner.VLLM if hints is not None and hints.engine == "vllm" else Manner.PLAIN

    async def _text(
        self, model: LocalModel, batch: PromptBatch | None, prompt: Slices, manner: Manner
    ) -> str:
        num_bytes = sum(len(memoryview(raw)) for raw in prompt.values())
        if num_bytes > LONGEST_BODY_BYTES:
            raise NoTokens("too_long")
        if num_bytes <= LOOP_BODY_BYTES:
            return model.text(batch, prompt, manner)
        async with self._turns.take():
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._models.threads, model.text, batch, prompt, manner)

    async def _encoded(self, encoder: Encoder, text: str, *, add_special_tokens: bool) -> bytes:
        encoding = encoder.start(text, add_special_tokens=add_special_tokens)
        if encoding.num_missing_characters > LOOP_CHARACTERS:
            async with self._turns.take():
                # Who waited for another prompt finds what they share encoded by now.
                encoding = encoder.start(text, add_special_tokens=add_special_tokens)
                if encoding.num_missing_characters > LOOP_CHARACTERS:
                    loop = asyncio.get_running_loop()
                    await loop.run_in_executor(self._models.threads, encoding.fill)
                    return encoding.packed()
        encoding.fill()
        return encoding.packed()


class _Turns:
    """Who may use a thread: as many at once as there are threads, and so many more may wait."""

    def __init__(self) -> None:
        self._semaphore = asyncio.Semaphore(ENCODER_THREADS)
        self._num_in = 0

    @contextlib.asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        """Raises NoTokens where too many wait already."""
        if self._num_in >= ENCODER_THREADS + WAITING_PROMPTS:
            raise NoTokens("busy")
        self._num_in += 1
        try:
            async with self._semaphore:
                yield
        finally:
            self._num_in -= 1
