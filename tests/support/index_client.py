"""An index server on loopback, asked over its port."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from aiohttp import web

from indexer.http import build_index_app
from indexer.http_listener import Site
from indexer.limits import INDEX_BYTES, SERVICE_HEAD_SECONDS
from indexer.service import IndexService
from indexer.warm_start import WarmStart
from router.index_command import exposition


class IndexClient:
    def __init__(self, service: IndexService, session: aiohttp.ClientSession, url: str) -> None:
        self.service, self.url, self._session = service, url, session

    async def get(self, path: str, **options) -> tuple[int, str]:
        async with self._session.get(self.url + path, **options) as answer:
            return answer.status, await answer.text()

    async def post(self, path: str, body: Any, **options) -> tuple[int, Any]:
        async with self._session.post(self.url + path, json=body, **options) as answer:
            return answer.status, await answer.json()

    async def dump(self) -> str:
        status, text = await self.get("/dump")
        assert status == 200
        return text


@contextlib.asynccontextmanager
async def running_index(
    *,
    max_bytes: int = INDEX_BYTES,
    api_key: str | None = None,
    warm_start: WarmStart | None = None,
    head_seconds: float = SERVICE_HEAD_SECONDS,
) -> AsyncIterator[IndexClient]:
    service = IndexService(max_bytes, warm_start)
    runner = web.AppRunner(build_index_app(service, exposition=exposition, api_key=api_key))
    await runner.setup()
    await Site(runner, "127.0.0.1", 0, head_seconds=head_seconds).start()
    service.start()
    try:
        async with aiohttp.ClientSession() as session:
            yield IndexClient(service, session, f"http://127.0.0.1:{runner.addresses[0][1]}")
    finally:
        service.stop()
        await runner.cleanup()
