"""A worker's HTTP API with canned answers, on a free loopback port."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType

from aiohttp import web

Canned = tuple[int, bytes]
Answer = Canned | None | Callable[[bytes], Canned | Awaitable[Canned]]


@dataclass
class FakeWorker:
    """`answers` by "METHOD /path": a status and a body, or a function of the request's body that gives them,
    or None, which drops the connection. Anything else is answered 404.

    `requests` holds what came, as (METHOD, path, headers by lower-case name, body).
    """

    answers: dict[str, Answer]
    requests: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    url: str = ""
    """Where it is; a Unix socket when given as `unix:/path`, else a free port of loopback."""
    tls: ssl.SSLContext | None = None

    async def __aenter__(self) -> FakeWorker:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        if self.url.startswith("unix:"):
            await web.UnixSite(self._runner, self.url.removeprefix("unix:")).start()
            return self
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self.tls).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"{'https' if self.tls else 'http'}://{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    def bodies(self, path: str) -> list[bytes]:
        """The bodies that came to `path`, in order."""
        return [body for _, asked, _, body in self.requests if asked == path]

    async def _handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.requests.append(
            (request.method, request.path, {k.lower(): v for k, v in request.headers.items()}, body)
        )
        answer = self.answers.get(f"{request.method} {request.path}", (404, b"{}"))
        if callable(answer):
            answer = answer(body)
            if asyncio.iscoroutine(answer) or isinstance(answer, asyncio.Future):
                answer = await answer
        if answer is None:
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        status, content = answer
        return web.Response(status=status, body=content, content_type="application/json")
