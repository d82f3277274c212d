"""The HTTP face that all mock workers have in common: generation, tokens, models, health.

What one engine has besides is in `mock_vllm` and `mock_sglang`; faults and life cycle are in `mock_process`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from aiohttp import HttpVersion11, web

from loadgen.mock_answers import (
    Answer,
    ChatAnswer,
    CompletionAnswer,
    Usage,
)
from loadgen.mock_api import (
    DEFAULT_MAX_TOKENS,
    ApiError,
    DetokenizeBody,
    GenerationRequest,
    TokenizeBody,
    decode,
    parse_chat,
    parse_completion,
    text_of_tokens,
    tokens_of,
)
from loadgen.mock_hand_over import Arrival, Connector, HandOverFaults, Passage, internal_error
from loadgen.mock_ranks import MockRank, busy_least, rank_named
from loadgen.sequences import TokenSequence
from loadgen.tokenizer import FIRST_WORD, TOKEN_TEXT
from loadgen.wire import Release
from policies.types import Role

BODY_BYTES_MAX = 64 * 1024 * 1024
RANK_HEADER = "X-data-parallel-rank"

AnswerFactory = Callable[..., Answer]
Parser = Callable[[bytes], GenerationRequest]

OPENAI_PATHS: Mapping[str, tuple[Parser, AnswerFactory]] = {
    "/v1/chat/completions": (parse_chat, ChatAnswer),
    "/v1/completions": (parse_completion, CompletionAnswer),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a worker says it is."""

    model: str
    adapters: tuple[str, ...]
    version: str
    start_time: float
    """Unix seconds; a new incarnation has a new one."""


class Host(Protocol):
    """The worker behind the paths; its ranks change with every incarnation."""

    ranks: Sequence[MockRank]
    identity: Identity
    release: Release
    topic: str
    cut_after_tokens: int | None
    told_block_tokens: int | None
    """What it says of its block size."""
    reports_miss: bool
    """Whether `usage` has details on a miss too; vLLM 0.23 and SGLang leave them out."""

    @property
    def events_port(self) -> int:
        """Of rank 0; the others follow."""
        ...

    @property
    def replay_port(self) -> int: ...

    hand_over_faults: HandOverFaults
    connector: Connector
    role: Role

    @property
    def bootstrap_port(self) -> int | None:
        """None where others don't meet at this worker."""
        ...

    def record(self, request: web.Request, body: bytes) -> None:
        """Keeps what it was sent, where that is wanted."""
        ...

    def next_request_id(self) -> str: ...

    def next_turn(self) -> int:
        """Counts the requests that name no rank."""
        ...

    def wall_seconds(self) -> float:
        """Unix seconds."""
        ...


class StreamSink:
    """Writes each token to the client's transport as it comes; no task is woken for it."""

    def __init__(self, transport: asyncio.Transport, answer: Answer, host: Host, finish_reason: str) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport = transport
        self._answer = answer
        self._host = host
        self._finish_reason = finish_reason

    def token(self, sequence: TokenSequence) -> None:
        if self._transport.is_closing():  # uvloop raises for a late write; the abort is on its way
            return
        text = TOKEN_TEXT[sequence.last_token - FIRST_WORD]
        data = self._answer.opening() if sequence.num_generated == 1 else b""
        data += self._answer.token(text, self._finish_reason if sequence.finished else None)
        if sequence.finished:
            data += self._answer.closing(usage_of(sequence, self._host), text_of(sequence))
        self._transport.write(data)
        if sequence.num_generated == self._host.cut_after_tokens:
            self._transport.close()
        if sequence.finished and not self.done.done():
            self.done.set_result(None)


class CollectSink:
    """Waits for the last token."""

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def token(self, sequence: TokenSequence) -> None:
        if sequence.finished and not self.done.done():
            self.done.set_result(None)


def text_of(sequence: TokenSequence) -> str:
    return "".join(TOKEN_TEXT[token - FIRST_WORD] for token in sequence.tokens[sequence.num_prompt_tokens :])


def usage_of(sequence: TokenSequence, host: Host) -> Usage:
    reported = sequence.reported_cached_tokens
    cached = (sequence.cached_tokens or 0) if reported is None else reported
    return Usage(
        prompt_tokens=sequence.num_prompt_tokens,
        completion_tokens=sequence.num_generated,
        cached_tokens=cached if cached or host.reports_miss else None,
    )


class EngineApi:
    """Request handlers for one worker."""

    owner: str
    """Who signs the entries of `/v1/models`."""
    protocols: Mapping[str, tuple[Parser, AnswerFactory]]
    """The paths that generate text."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def add_routes(self, app: web.Application) -> None:
        for path in self.protocols:
            app.router.add_post(path, self.generate)
        app.router.add_post("/tokenize", self.tokenize)
        app.router.add_post("/detokenize", self.detokenize)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/health", self.health)
        app.router.add_get("/metrics", self.metrics)

    def error_body(self, error: ApiError) -> bytes:
        raise NotImplementedError

    def render_metrics(self) -> str:
        raise NotImplementedError

    @property
    def _context_limit(self) -> int:
        return self._host.ranks[0].model.settings.context_limit

    def _rank_for(self, request: web.Request, wanted: GenerationRequest) -> MockRank:
        del wanted
        ranks, name = self._host.ranks, request.headers.get(RANK_HEADER)
        named = rank_named(ranks, name) if name is not None and self._host.release.reads_rank else None
        return named or busy_least(ranks, self._host.next_turn())

    async def generate(self, request: web.Request) -> web.StreamResponse:
        parse, answer_factory = self.protocols[request.path]
        body = await request.read()
        self._host.record(request, body)
        if self._host.hand_over_faults.take("internal_error"):
            raise internal_error()
        wanted = parse(body)
        name, adapter = self._resolve(wanted.model)
        request_id = request.headers.get("X-Request-Id") or self._host.next_request_id()
        created = int(self._host.wall_seconds())
        answer = answer_factory(request_id, name, created, include_usage=wanted.include_usage)
        max_tokens = self._checked_max_tokens(wanted)
        rank = self._rank_for(request, wanted)
        sequence = rank.model.sequence(
            request_id, wanted.token_ids, max_tokens, adapter=adapter, cache_salt=wanted.cache_salt
        )
        arrival = Arrival(
            rank=rank,
            sequence=sequence,
            wanted=wanted,
            request_id=answer.id,
            transport=request.transport,
        )
        passage = self._host.connector.passage(arrival)
        finish_reason = "stop" if wanted.max_tokens is None else "length"
        if wanted.stream:
            return await self._stream(request, arrival, passage, answer, finish_reason)
        return await self._collect(arrival, passage, answer, finish_reason)

    async def _stream(
        self,
        request: web.Request,
        arrival: Arrival,
        passage: Passage,
        answer: Answer,
        finish_reason: str,
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        response.enable_chunked_encoding()
        try:
            # The head leaves at once and the first token after prefill, as from the engines' HTTP servers.
            await response.prepare(request)
            transport = request.transport
            if transport is None:
                raise ConnectionResetError
            await self._run(arrival, passage, StreamSink(transport, answer, self._host, finish_reason))
        except ApiError as error:
            # The head said 200 before anybody knew.
            await response.write(b"data: %s\n\ndata: [DONE]\n\n" % self.error_body(error))
        finally:
            arrival.rank.driver.abort(arrival.sequence)
            passage.close()
        await response.write_eof()
        return response

    async def _collect(
        self, arrival: Arrival, passage: Passage, answer: Answer, finish_reason: str
    ) -> web.Response:
        sequence = arrival.sequence
        try:
            await self._run(arrival, passage, CollectSink())
            body = answer.body(text_of(sequence), usage_of(sequence, self._host), finish_reason)
            if members := passage.members():
                body = b"%s,%s" % (body[:-1], msgspec.json.encode(members)[1:])
        finally:
            arrival.rank.driver.abort(sequence)
            passage.close()
        return web.Response(body=body, content_type="application/json")

    async def _run(self, arrival: Arrival, passage: Passage, sink: StreamSink | CollectSink) -> None:
        """From engine to engine, where it goes that way, and through this one."""
        rank = arrival.rank
        with rank.in_passage():
            await passage.receive()
        rank.driver.submit(arrival.sequence, sink)
        await sink.done
        passage.computed()
        with rank.in_passage():
            await passage.deliver()

    async def tokenize(self, request: web.Request) -> web.Response:
        body = decode(await request.read(), TokenizeBody)
        self._resolve(body.model)
        token_ids = tokens_of(body)
        return json_response(
            {"count": len(token_ids), "max_model_len": self._context_limit, "tokens": token_ids}
        )

    async def detokenize(self, request: web.Request) -> web.Response:
        return json_response({"prompt": text_of_tokens(decode(await request.read(), DetokenizeBody))})

    async def models(self, _request: web.Request) -> web.Response:
        base, *_ = names = (self._host.identity.model, *self._host.identity.adapters)
        data = [self._model_entry(name, None if name == base else base) for name in names]
        return json_response({"object": "list", "data": data})

    async def health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def metrics(self, _request: web.Request) -> web.Response:
        return web.Response(text=self.render_metrics(), content_type="text/plain")

    def reset(self) -> bool:
        """All ranks, or none while one of them is busy."""
        ranks = self._host.ranks
        return not any(rank.num_active for rank in ranks) and all(
            rank.model.reset_prefix_cache() for rank in ranks
        )

    def _model_entry(self, name: str, parent: str | None) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": int(self._host.identity.start_time),
            "owned_by": self.owner,
            "root": name,
            "parent": parent,
            "max_model_len": self._context_limit if parent is None else None,
        }

    def _resolve(self, model: str | None) -> tuple[str, str]:
        """(name to answer with, adapter or ""). Raises ApiError 404 for a model that is not served."""
        identity = self._host.identity
        if model is None or model == identity.model:
            return identity.model, ""
        if model in identity.adapters:
            return model, model
        served = ", ".join((identity.model, *identity.adapters))
        message = f"The model `{model}` does not exist. Valid aliases: {served}."
        raise ApiError(404, message, kind="NotFoundError", param="model")

    def _checked_max_tokens(self, wanted: GenerationRequest) -> int:
        limit, count = self._context_limit, len(wanted.token_ids)
        if not count:
            raise ApiError(400, "the prompt must not be empty", param="prompt")
        if count >= limit:
            message = (
                f"This model's maximum context length is {limit} tokens. However, your prompt contains "
                f"{count} input tokens, which exceeds this limit even without any output tokens. "
                f"Please reduce the length of the input prompt. (parameter=input_tokens, value={count})"
            )
            raise ApiError(400, message, param="input_tokens")
        if wanted.max_tokens is not None and wanted.max_tokens < 1:
            raise ApiError(400, "max_tokens must be at least 1", param="max_tokens")
        max_tokens = DEFAULT_MAX_TOKENS if wanted.max_tokens is None else wanted.max_tokens
        return min(max_tokens, limit - count)

    @web.middleware
    async def answer_errors(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """ApiError in the engine's shape; a path or method that does not exist in that of its HTTP
        framework."""
        if request.version < HttpVersion11:
            return web.Response(status=505, text="the mock speaks HTTP/1.1 only")
        try:
            return await handler(request)
        except ApiError as error:
            body = self.error_body(error)
            return web.Response(status=error.status, body=body, content_type="application/json")
        except web.HTTPException as error:
            return json_response({"detail": error.reason}, status=error.status)


def json_response(data: object, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(data), content_type="application/json")
