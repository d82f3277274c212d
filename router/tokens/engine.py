"""Tokens from the engines themselves: the only ones that are sure to hash to the blocks that engines store.

A healthy worker of the model is asked, results are kept by content, and equal requests share one call. What
an engine cannot be asked for, or does not answer in time, becomes a prompt of bytes and is counted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import msgspec
from xxhash import xxh3_128_digest

from indexer.blocks import Unit
from router.core.catalogue import Resolution
from router.core.prompt import Prompt
from router.engines import ENGINES, WorkerSessions
from router.engines.http import CallFailed, CallTimedOut, WorkerHttp
from router.engines.tokenize import TOKENIZE_PATH, TokenizeAnswer
from router.tasks import start_task
from router.tokens.base import TokenHost, TokenizeTarget
from router.tokens.bytes import BytesTokens
from router.tokens.cache import TokenCache, TokenizedPrompt
from router.tokens.hashing import Pace, chain_hashes, root_seeds
from router.tokens.limits import (
    ANSWER_BYTES_BASE,
    ANSWER_BYTES_PER_REQUEST_BYTE,
    TOKENIZE_CALLS_PER_WORKER,
    TOKENIZE_SECONDS,
)
from router.tokens.prompts import (
    NotTokenIds,
    PromptBatch,
    batch_of,
    is_foretellable,
    pack_json_ids,
    prompt_of_ids,
)
from router.tokens.refusals import TOKENIZED, NoTokens, num_other_tokens, refuse_media
from router.wire.endpoints import Endpoint, Protocol
from router.wire.openai import ParsedBody, Slices


class EngineTokens:
    """The token source `engine`."""

    def __init__(
        self, host: TokenHost, sessions: WorkerSessions, *, timeout_seconds: float = TOKENIZE_SECONDS
    ) -> None:
        self._host = host
        self._bytes = BytesTokens(host)
        self._calls = _SharedCalls(sessions, timeout_seconds)
        self._cache = TokenCache()

    async def prompt(self, parsed: ParsedBody, endpoint: Endpoint, resolution: Resolution) -> Prompt | None:
        batch = batch_of(parsed.prompt)
        if batch is not None and batch.are_ids:
            return await prompt_of_ids(batch, parsed, resolution, self._host)
        if endpoint.protocol is Protocol.CHAT or (batch is not None and endpoint.protocol in TOKENIZED):
            try:
                return await self._ask(batch, parsed, endpoint.protocol, resolution)
            except NoTokens as error:
                self._host.fell_back(error.reason)
        return await self._bytes.prompt_of_text(batch, parsed, resolution)

    async def _ask(
        self, batch: PromptBatch | None, parsed: ParsedBody, protocol: Protocol, resolution: Resolution
    ) -> Prompt:
        refuse_media(parsed.prompt)
        target = self._calls.least_busy(self._host.tokenize_targets(resolution.model))
        request = ENGINES[target.engine].tokenize_request(
            protocol, of_first(parsed.prompt, batch), resolution.model
        )
        if request is None:
            raise NoTokens("unsupported")
        digest = xxh3_128_digest(request)
        entry = self._cache.get(digest)
        if entry is None:
            entry = await self._calls.tokenize(digest, request, target)
            self._cache.put(digest, entry)
        return await self._ready(digest, entry, batch, parsed, resolution)

    async def _ready(
        self,
        digest: bytes,
        entry: TokenizedPrompt,
        batch: PromptBatch | None,
        parsed: ParsedBody,
        resolution: Resolution,
    ) -> Prompt:
        seeds = root_seeds(self._host, parsed, resolution, Unit.TOKENS)
        chains = {seed[0]: entry.chains[seed] for seed in seeds if seed in entry.chains}
        if new_seeds := [seed for seed in seeds if seed[0] not in chains]:
            new_chains = await chain_hashes(entry.packed, new_seeds, Pace())
            self._cache.add_chains(digest, entry, {seed: new_chains[seed[0]] for seed in new_seeds})
            chains |= new_chains
        return Prompt(
            num_tokens=entry.num_tokens + num_other_tokens(batch, entry.num_tokens),
            unit=Unit.TOKENS,
            chains=chains,
            exact=is_foretellable(parsed, batch),
            cache_salt=parsed.cache_salt,
        )


def of_first(prompt: Slices, batch: PromptBatch | None) -> Slices:
    """The prompt's fields with the first text of a batch in the place of all."""
    if batch is None:
        return prompt
    name = "prompt" if "prompt" in prompt else "text"
    return {**prompt, name: msgspec.Raw(batch.first)}


class _SharedCalls:
    """Calls of /tokenize under way: at most some for each worker, and one for each content."""

    def __init__(self, sessions: WorkerSessions, timeout_seconds: float) -> None:
        self._sessions = sessions
        self._timeout_seconds = timeout_seconds
        self._under_way: dict[bytes, asyncio.Task[TokenizedPrompt | NoTokens]] = {}
        self._num_waiting: Counter[bytes] = Counter()
        """By content, the callers."""
        self._num_calls: Counter[str] = Counter()
        """By worker, those that wait for their turn included."""
        self._turns: dict[str, asyncio.Semaphore] = {}

    def least_busy(self, targets: Sequence[TokenizeTarget]) -> TokenizeTarget:
        if not targets:
            raise NoTokens("no_worker")
        return min(targets, key=lambda target: self._num_calls[target.worker_id])

    async def tokenize(self, digest: bytes, request: bytes, target: TokenizeTarget) -> TokenizedPrompt:
        """The tokens that `request` asks for. A caller that goes away leaves the call to the others; the last
        one takes it along."""
        task = self._under_way.get(digest)
        if task is None:
            task = self._start(digest, request, target)
        self._num_waiting[digest] += 1
        try:
            outcome = await asyncio.shield(task)
        finally:
            self._num_waiting[digest] -= 1
            if not self._num_waiting[digest]:
                del self._num_waiting[digest]
                self._under_way.pop(digest, None)  # at once: who comes now must not join what ends
                task.cancel()
        if isinstance(outcome, NoTokens):
            raise NoTokens(outcome.reason)
        return outcome

    def _start(
        self, digest: bytes, request: bytes, target: TokenizeTarget
    ) -> asyncio.Task[TokenizedPrompt | NoTokens]:
        worker_id = target.worker_id
        task = start_task(self._call(request, target), name=f"tokenize at {worker_id}")
        self._under_way[digest] = task
        # Counted before the task runs: callers that come in the same turn must see each other.
        self._num_calls[worker_id] += 1

        def ended(_: object) -> None:
            if self._under_way.get(digest) is task:
                del self._under_way[digest]
            self._num_calls[worker_id] -= 1
            if not self._num_calls[worker_id]:
                del self._num_calls[worker_id]
                self._turns.pop(worker_id, None)

        task.add_done_callback(ended)
        return task

    async def _call(self, request: bytes, target: TokenizeTarget) -> TokenizedPrompt | NoTokens:
        """Never raises, so that one failure can be told to several callers."""
        turns = self._turns.setdefault(target.worker_id, asyncio.Semaphore(TOKENIZE_CALLS_PER_WORKER))
        try:
            async with asyncio.timeout(self._timeout_seconds), turns:
                return await self._post(request, target)
        except (TimeoutError, CallTimedOut):
            return NoTokens("timeout")
        except CallFailed:
            return NoTokens("unreachable")
        except NoTokens as error:
            return error

    async def _post(self, request: bytes, target: TokenizeTarget) -> TokenizedPrompt:
        http = WorkerHttp(self._sessions, target.url, target.headers, timeout_seconds=self._timeout_seconds)
        max_bytes = ANSWER_BYTES_BASE + ANSWER_BYTES_PER_REQUEST_BYTE * len(request)
        answer = await http.post_json(TOKENIZE_PATH, request, max_bytes)
        if not answer.is_success:
            raise NoTokens("refused")
        try:
            ids = msgspec.json.decode(answer.body, type=TokenizeAnswer).tokens
            return TokenizedPrompt(await pack_json_ids(bytes(ids), Pace()))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, NotTokenIds):
            raise NoTokens("rubbish") from None
