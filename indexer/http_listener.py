"""How the servers on aiohttp, the admin port and the index server, take requests in: heads that come in time
and are HTTP, bodies that come in time and as they are. What is asked belongs elsewhere."""

from __future__ import annotations

import asyncio
import logging

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from indexer.limits import SERVICE_BODY_SECONDS, SERVICE_HEAD_SECONDS, SERVICE_IDLE_SECONDS

_logger = logging.getLogger("kvgate.http")

_AS_IT_IS = ("", "identity")


class Site(web.BaseSite):
    """`runner`'s application at an address. Times are in seconds."""

    def __init__(
        self,
        runner: web.AppRunner,
        host: str,
        port: int,
        *,
        head_seconds: float = SERVICE_HEAD_SECONDS,
    ) -> None:
        super().__init__(runner)
        self._app_runner = runner
        self._host = host
        self._port = port
        self._head_seconds = head_seconds

    @property
    def name(self) -> str:
        return f"http://{self._host}:{self._port}"

    async def start(self) -> None:
        """Raises OSError for an address that can't be had."""
        await super().start()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connection, self._host, self._port)

    def _connection(self) -> _Connection:
        server = self._app_runner.server
        assert server is not None, "the runner is set up first"
        return _Connection(server, asyncio.get_running_loop(), self._head_seconds)


class _Connection(web.RequestHandler):
    def __init__(self, server: web.Server, loop: asyncio.AbstractEventLoop, head_seconds: float) -> None:
        super().__init__(
            server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]  # aiohttp's own way to say that there is none
            auto_decompress=False,
            keepalive_timeout=SERVICE_IDLE_SECONDS,
        )
        self._head_seconds = head_seconds
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        # aiohttp times only what follows a first request.
        self._head_timer = asyncio.get_running_loop().call_later(self._head_seconds, self.force_close)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.head_arrived()
        super().connection_lost(exc)

    def head_arrived(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What llhttp does not take is the client's affair: no traceback, nothing of it echoed."""
        self.head_arrived()
        if status != 400:
            return super().handle_error(request, status, exc, message)
        _logger.debug("malformed HTTP from %s: %s", request.remote, message)
        fields = {
            "message": "Malformed HTTP request",
            "type": "invalid_request_error",
            "param": None,
            "code": "bad_request",
        }
        body = msgspec.json.encode({"error": fields})
        response = web.Response(body=body, status=400, content_type="application/json")
        response.force_close()
        return response


def begin(request: web.Request) -> None:
    """To be called first for every request. Raises HTTPBadRequest for a Host that names nothing."""
    if isinstance(request.protocol, _Connection):
        request.protocol.head_arrived()
    try:
        request.url.host  # noqa: B018 - it is made when it is asked for, and then remembered
    except ValueError:
        raise web.HTTPBadRequest(text="The Host header names no host") from None


async def take_body(request: web.Request) -> None:
    """Has the body read and remembered, once its sender is known to be allowed to send one. Raises
    HTTPException for one that is compressed, malformed, too large, or late."""
    if request.headers.get("Content-Encoding", "").strip().lower() not in _AS_IT_IS:
        raise web.HTTPUnsupportedMediaType(
            text="Content-Encoding is not supported here: send the body as it is"
        )
    try:
        async with asyncio.timeout(SERVICE_BODY_SECONDS):
            await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout(
            text=f"The body did not come within {SERVICE_BODY_SECONDS:g} seconds"
        ) from None
    except (web.RequestPayloadError, HttpProcessingError):
        raise web.HTTPBadRequest(text="Malformed HTTP request: its body breaks off") from None
