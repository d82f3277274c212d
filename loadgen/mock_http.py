"""The HTTP face of a mock worker: vLLM's paths around one engine. Faults and life cycle are in
`mock_worker`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from aiohttp import HttpVersion11, web

from loadgen.engine import EngineModel
from loadgen.mock_answers import (
    Answer,
    ChatAnswer,
    CompletionAnswer,
    MessagesAnswer,
    ResponsesAnswer,
    Usage,
)
from loadgen.mock_api import (
    DEFAULT_MAX_TOKENS,
    ApiError,
    DetokenizeBody,
    EmbeddingsBody,
    GenerationRequest,
    TokenizeBody,
    decode,
    parse_chat,
    parse_completion,
    parse_messages,
    parse_responses,
    text_of_tokens,
    tokens_of,
)
from loadgen.mock_driver import RealTimeDriver
from loadgen.mock_metrics import render_metrics
from loadgen.sequences import EngineSequence
from loadgen.tokenizer import FIRST_WORD, TOKEN_TEXT, tokenize

BODY_BYTES_MAX = 64 * 1024 * 1024
EMBEDDING = [0.0, 0.6, 0.8]

AnswerFactory = Callable[..., Answer]
Parser = Callable[[bytes], GenerationRequest]

GENERATION_PATHS: Mapping[str, tuple[Parser, AnswerFactory]] = {
    "/v1/chat/completions": (parse_chat, ChatAnswer),
    "/v1/completions": (parse_completion, CompletionAnswer),
    "/v1/responses": (parse_responses, ResponsesAnswer),
    "/v1/messages": (parse_messages, MessagesAnswer),
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
    """The worker behind the paths; engine and driver change with every incarnation."""

    driver: RealTimeDriver
    identity: Identity
    cut_after_tokens: int | None
    reports_miss: bool
    """Whether `usage` has details on a miss too; 0.23 left them out."""

    def next_request_id(self) -> str: ...

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

    def token(self, sequence: EngineSequence) -> None:
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

    def token(self, sequence: EngineSequence) -> None:
        if sequence.finished and not self.done.done():
            self.done.set_result(None)


def text_of(sequence: EngineSequence) -> str:
    return "".join(TOKEN_TEXT[token - FIRST_WORD] for token in sequence.tokens[sequence.num_prompt_tokens :])


def usage_of(sequence: EngineSequence, host: Host) -> Usage:
    cached = sequence.cached_tokens or 0
    return Usage(
        prompt_tokens=sequence.num_prompt_tokens,
        completion_tokens=sequence.num_generated,
        cached_tokens=cached if cached or host.reports_miss else None,
    )


class VllmApi:
    """Request handlers for one worker."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def add_routes(self, app: web.Application) -> None:
        for path in GENERATION_PATHS:
            app.router.add_post(path, self.generate)
        app.router.add_post("/tokenize", self.tokenize)
        app.router.add_post("/detokenize", self.detokenize)
        app.router.add_post("/v1/embeddings", self.embeddings)
        app.router.add_post("/reset_prefix_cache", self.reset_prefix_cache)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/health", self.health)
        app.router.add_get("/ping", self.health)
        app.router.add_get("/version", self.version)
        app.router.add_get("/load", self.load)
        app.router.add_get("/metrics", self.metrics)

    @property
    def _model(self) -> EngineModel:
        return self._host.driver.model

    async def generate(self, request: web.Request) -> web.StreamResponse:
        parse, answer_factory = GENERATION_PATHS[request.path]
        wanted = parse(await request.read())
        name, adapter = self._resolve(wanted.model)
        request_id = request.headers.get("X-Request-Id") or self._host.next_request_id()
        created = int(self._host.wall_seconds())
        answer = answer_factory(request_id, name, created, include_usage=wanted.include_usage)
        max_tokens = self._checked_max_tokens(wanted)
        sequence = self._model.submit(
            request_id, wanted.token_ids, max_tokens, adapter=adapter, cache_salt=wanted.cache_salt
        )
        finish_reason = "stop" if wanted.max_tokens is None else "length"
        if wanted.stream:
            return await self._stream(request, sequence, answer, finish_reason)
        return await self._collect(sequence, answer, finish_reason)

    async def _stream(
        self, request: web.Request, sequence: EngineSequence, answer: Answer, finish_reason: str
    ) -> web.StreamResponse:
        driver = self._host.driver
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        response.enable_chunked_encoding()
        try:
            # The head leaves at once and the first token after prefill, as from vLLM's HTTP server.
            await response.prepare(request)
            transport = request.transport
            if transport is None:
                raise ConnectionResetError
            sink = StreamSink(transport, answer, self._host, finish_reason)
            driver.submit(sequence, sink)
            await sink.done
        finally:
            driver.abort(sequence)
        await response.write_eof()
        return response

    async def _collect(self, sequence: EngineSequence, answer: Answer, finish_reason: str) -> web.Response:
        driver = self._host.driver
        sink = CollectSink()
        try:
            driver.submit(sequence, sink)
            await sink.done
        finally:
            driver.abort(sequence)
        body = answer.body(text_of(sequence), usage_of(sequence, self._host), finish_reason)
        return web.Response(body=body, content_type="application/json")

    async def tokenize(self, request: web.Request) -> web.Response:
        body = decode(await request.read(), TokenizeBody)
        self._resolve(body.model)
        token_ids = tokens_of(body)
        limit = self._model.settings.context_limit
        return json_response(
            {"count": len(token_ids), "max_model_len": limit, "tokens": token_ids, "token_strs": None}
        )

    async def detokenize(self, request: web.Request) -> web.Response:
        return json_response({"prompt": text_of_tokens(decode(await request.read(), DetokenizeBody))})

    async def embeddings(self, request: web.Request) -> web.Response:
        body = decode(await request.read(), EmbeddingsBody)
        name, _adapter = self._resolve(body.model)
        texts = [body.input] if isinstance(body.input, str) else body.input
        count = sum(len(tokenize(text)) for text in texts)
        data = [{"object": "embedding", "index": i, "embedding": EMBEDDING} for i in range(len(texts))]
        usage = {"prompt_tokens": count, "total_tokens": count}
        return json_response({"object": "list", "data": data, "model": name, "usage": usage})

    async def reset_prefix_cache(self, _request: web.Request) -> web.Response:
        return json_response({"success": self._model.reset_prefix_cache()})

    async def models(self, _request: web.Request) -> web.Response:
        base, *_ = names = (self._host.identity.model, *self._host.identity.adapters)
        data = [self._model_entry(name, None if name == base else base) for name in names]
        return json_response({"object": "list", "data": data})

    async def health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def version(self, _request: web.Request) -> web.Response:
        return json_response({"version": self._host.identity.version})

    async def load(self, _request: web.Request) -> web.Response:
        return json_response({"server_load": 0})

    async def metrics(self, _request: web.Request) -> web.Response:
        driver, identity = self._host.driver, self._host.identity
        text = render_metrics(
            driver.model,
            model_name=identity.model,
            start_time=identity.start_time,
            lag_seconds_mean=driver.lag_seconds_mean,
            lag_seconds_max=driver.lag_seconds_max,
        )
        return web.Response(text=text, content_type="text/plain")

    def _model_entry(self, name: str, parent: str | None) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": int(self._host.identity.start_time),
            "owned_by": "vllm",
            "root": name,
            "parent": parent,
            "max_model_len": self._model.settings.context_limit if parent is None else None,
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
        limit, count = self._model.settings.context_limit, len(wanted.token_ids)
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
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """ApiError in vLLM's shape; a path or method that does not exist in the shape of its HTTP framework."""
    if request.version < HttpVersion11:
        return web.Response(status=505, text="the mock speaks HTTP/1.1 only")
    try:
        return await handler(request)
    except ApiError as error:
        return web.Response(status=error.status, body=error.body(), content_type="application/json")
    except web.HTTPException as error:
        return json_response({"detail": error.reason}, status=error.status)


def json_response(data: object, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(data), content_type="application/json")
