"""The index server's calls over HTTP: bodies in, JSON out, errors in words. What they do is in `service`."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import fields
from typing import Annotated, Any, TypeVar

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware
from prometheus_client import CONTENT_TYPE_LATEST

from indexer.blocks import BlockHash
from indexer.events import Tier
from indexer.http_listener import begin, take_body
from indexer.limits import SERVICE_BODY_BYTES
from indexer.service import FollowedWorker, Holding, IndexService

_logger = logging.getLogger("kvgate.index")

_Body = TypeVar("_Body")

_LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


TokenId = Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)]


class QueryBody(msgspec.Struct, forbid_unknown_fields=True):
    """A prompt by its token ids, or by the block hashes that `/dump` and earlier answers name (16 hex
    digits)."""

    model: str = ""
    adapter: str = ""
    cache_salt: str = ""
    token_ids: list[TokenId] | None = None
    block_hashes: list[str] | None = None


class WorkerBody(msgspec.Struct, forbid_unknown_fields=True):
    """A worker to follow, as `--worker` describes it."""

    name: str
    events: str
    model: str
    replay: str | None = None
    engine: str = "vllm"
    block_size: int = msgspec.field(default=16, name="block-size")
    dp_rank: int | None = msgspec.field(default=None, name="dp-rank")
    topic: str = ""

    def worker(self) -> FollowedWorker:
        """Raises ValueError for what can't be."""
        for name in ("name", "events", "model"):
            if not getattr(self, name):
                raise ValueError(f"{name} must not be empty")
        if self.block_size < 1:
            raise ValueError(f"block-size must be at least 1, not {self.block_size}")
        return FollowedWorker(**msgspec.structs.asdict(self))


class _NameBody(msgspec.Struct, forbid_unknown_fields=True):
    name: str


Exposition = Callable[[IndexService], Iterator[bytes]]
"""What is known of the workers, as Prometheus text in pieces."""


def build_index_app(
    service: IndexService, *, exposition: Exposition, api_key: str | None = None
) -> web.Application:
    """An application ready for a runner. Without a key it answers to localhost only."""
    calls = _Calls(service, exposition)
    app = web.Application(middlewares=[_answers(api_key)], client_max_size=SERVICE_BODY_BYTES)
    app.router.add_get("/health", calls.health)
    app.router.add_get("/workers", calls.workers)
    app.router.add_get("/dump", calls.dump)
    app.router.add_get("/snapshot", calls.snapshot)
    app.router.add_get("/metrics", calls.metrics)
    app.router.add_post("/query", calls.query)
    app.router.add_post("/register", calls.register)
    app.router.add_post("/unregister", calls.unregister)
    return app


class _Calls:
    def __init__(self, service: IndexService, exposition: Exposition) -> None:
        self._service = service
        self._exposition = exposition

    async def health(self, request: web.Request) -> web.Response:
        return _json({"status": "ok"})

    async def workers(self, request: web.Request) -> web.Response:
        return _json({"workers": self._rows(), "num_bytes": self._service.feed.num_bytes})

    async def query(self, request: web.Request) -> web.Response:
        body = await _body(request, QueryBody)
        if (body.token_ids is None) == (body.block_hashes is None):
            raise _wrong("give either token_ids or block_hashes", param="token_ids")
        if body.block_hashes is not None:
            return _json({"workers": _holdings(self._service.ask_for_blocks(_hashes(body.block_hashes)))})
        assert body.token_ids is not None
        models = sorted({worker.model for worker, *_ in self._service.workers()})
        if body.model not in models:
            raise _wrong(
                f"no worker of model {body.model!r} is followed; there are: {_listed(models)}", 404, "model"
            )
        found = await self._service.ask_for_tokens(
            body.token_ids, model=body.model, adapter=body.adapter, cache_salt=body.cache_salt
        )
        return _json({"workers": _holdings(found)})

    async def register(self, request: web.Request) -> web.Response:
        body = await _body(request, WorkerBody)
        try:
            worker = body.worker()
            self._service.register(worker)
        except ValueError as error:
            raise _wrong(str(error)) from None
        _logger.info("worker %s is followed at %s", worker.name, worker.events)
        return _json({"registered": worker.name}, 201)

    async def unregister(self, request: web.Request) -> web.Response:
        name = (await _body(request, _NameBody)).name
        try:
            self._service.unregister(name)
        except KeyError:
            known = _listed(worker.name for worker, *_ in self._service.workers())
            raise _wrong(f"no worker {name!r} is followed; there are: {known}", 404, "name") from None
        _logger.info("worker %s is followed no more", name)
        return _json({"unregistered": name})

    async def dump(self, request: web.Request) -> web.StreamResponse:
        return await stream_dump(request, self._service.dump())

    async def snapshot(self, request: web.Request) -> web.StreamResponse:
        return await stream_snapshot(request, self._service.snapshot())

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        return await _stream(request, self._exposition(self._service), CONTENT_TYPE_LATEST)

    def _rows(self) -> list[dict[str, Any]]:
        return [
            {
                "name": worker.name,
                "events": worker.events,
                "replay": worker.replay,
                "model": worker.model,
                "engine": worker.engine,
                "block_tokens": layout.block_tokens,
                "trust": {"level": trust.level.value, "reason": trust.reason},
                "counters": {each.name: getattr(stats, each.name) for each in fields(stats)},
            }
            for worker, layout, trust, stats in self._service.workers()
        ]


async def stream_dump(
    request: web.Request, pieces: Iterable[list[tuple[Tier, BlockHash, list[str]]]]
) -> web.StreamResponse:
    """One JSON object a line, in an order that depends on the content alone."""
    return await _stream(request, (b"".join(map(_line, piece)) for piece in pieces), "application/x-ndjson")


async def stream_snapshot(request: web.Request, pieces: Iterable[bytes]) -> web.StreamResponse:
    """For `warm_start`'s other side."""
    return await _stream(request, pieces, "application/octet-stream")


async def _stream(request: web.Request, pieces: Iterable[bytes], content_type: str) -> web.StreamResponse:
    """An answer that is made piece by piece; between pieces others have their turn."""
    response = web.StreamResponse(headers={"Content-Type": content_type})
    await response.prepare(request)
    for piece in pieces:
        await response.write(piece)
        await asyncio.sleep(0)
    await response.write_eof()
    return response


def _line(claim: tuple[Tier, BlockHash, list[str]]) -> bytes:
    tier, block, names = claim
    return msgspec.json.encode({"tier": tier, "block": f"{block:016x}", "workers": names}) + b"\n"


def _holdings(found: Iterable[Holding]) -> list[dict[str, Any]]:
    return [
        {
            "worker": each.worker.name,
            "trust": each.trust.level.value,
            "reason": each.trust.reason,
            "block_tokens": each.layout.block_tokens,
            "device": each.device,
            "host": each.host,
            "disk": each.disk,
            "tokens": (each.device + each.host + each.disk) * each.layout.block_tokens,
        }
        for each in found
    ]


async def _body(request: web.Request, kind: type[_Body]) -> _Body:
    try:
        return msgspec.json.decode(await request.read(), type=kind)
    except msgspec.ValidationError as error:
        raise _wrong(str(error)) from None
    except msgspec.DecodeError as error:
        raise _wrong(f"the body is not JSON: {error}") from None


def _hashes(texts: Iterable[str]) -> list[int]:
    try:
        return [int(text, 16) for text in texts if len(text) <= 16 or _no_hash()]
    except ValueError:
        raise _wrong("block_hashes must be texts of up to 16 hex digits", param="block_hashes") from None


def _no_hash() -> bool:
    raise ValueError


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _json(content: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(content), status=status, content_type="application/json")


class _Wrong(Exception):
    """Answered in the shape of OpenAI's errors. `param`: the field at fault."""

    def __init__(self, message: str, status: int, param: str | None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param

    def answer(self) -> web.Response:
        kind, code = _KINDS.get(self.status, _KINDS[400])
        fields = {"message": str(self), "type": kind, "param": self.param, "code": code}
        return _json({"error": fields}, self.status)


_KINDS = {
    400: ("invalid_request_error", "bad_request"),
    401: ("authentication_error", "invalid_api_key"),
    403: ("permission_error", "forbidden"),
    404: ("invalid_request_error", "not_found"),
    405: ("invalid_request_error", "method_not_allowed"),
    413: ("invalid_request_error", "body_too_large"),
    500: ("server_error", "internal_error"),
}
"""Type and code by status."""


def _wrong(message: str, status: int = 400, param: str | None = None) -> _Wrong:
    return _Wrong(message, status, param)


def _answers(api_key: str | None) -> Middleware:
    """Access first; then every error as JSON."""

    @web.middleware
    async def answer(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            begin(request)
            _check_access(request, api_key)
            await take_body(request)
            return await handler(request)
        except _Wrong as error:
            return error.answer()
        except web.HTTPException as error:
            return _wrong(error.text or error.reason, error.status).answer()
        except Exception:
            _logger.exception("call %s %s failed", request.method, request.path)
            return _wrong("the index server failed; its log says why", 500).answer()

    return answer


def _check_access(request: web.Request, api_key: str | None) -> None:
    """With a key: who shows it. Without: programs of this machine, but no web page of another site."""
    if api_key is not None:
        shown = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        if not hmac.compare_digest(shown.encode("utf-8", "replace"), api_key.encode()):
            raise _wrong("the index server needs its key: Authorization: Bearer KEY", 401)
    elif request.url.host not in _LOCAL_HOSTS or "Origin" in request.headers:
        raise _wrong("without --api-key the index server answers to localhost only, and to no web page", 403)
