"""Real WebSocket clients and servers with the gateway between them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest
from aiohttp import WSMsgType, web

from tests.support.relay import Gateway, gateway
from tests.support.waiting import eventually

Serve = Callable[[web.WebSocketResponse], Awaitable[None]]

MESSAGE_BYTES = 1 << 20


@contextlib.asynccontextmanager
async def worker(serve: Serve) -> AsyncIterator[str]:
    """The URL of a server whose `/v1/realtime` speaks the subprotocol `realtime`."""

    async def realtime(request: web.Request) -> web.StreamResponse:
        if request.query.get("refuse"):
            raise web.HTTPForbidden(text="not you")
        socket = web.WebSocketResponse(protocols=["realtime"], autoping=True, max_msg_size=2 * MESSAGE_BYTES)
        await socket.prepare(request)
        await serve(socket)
        return socket

    app = web.Application()
    app.router.add_get("/v1/realtime", realtime)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def connected(
    running: Gateway, session: aiohttp.ClientSession, **options: object
) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    url = f"http://127.0.0.1:{running.port}/v1/realtime?model=m"
    async with session.ws_connect(
        url, protocols=["realtime"], max_msg_size=2 * MESSAGE_BYTES, **options
    ) as ws:
        yield ws


async def echoes(socket: web.WebSocketResponse) -> None:
    async for message in socket:
        if message.type is WSMsgType.TEXT:
            await socket.send_str(message.data)
        else:
            await socket.send_bytes(message.data)


@pytest.mark.parametrize("compress", [0, 15])
async def test_messages_of_a_mebibyte_and_pings(compress: int) -> None:
    async with (
        worker(echoes) as url,
        gateway(url) as running,
        aiohttp.ClientSession() as session,
        connected(running, session, autoping=False, compress=compress) as ws,
    ):
        assert ws.protocol == "realtime"
        for data in (b"", b"a", bytes(range(256)) * (MESSAGE_BYTES // 256)):
            await ws.send_bytes(data)
            assert await ws.receive_bytes() == data
        await ws.send_str('{"type":"session.update"}')
        assert await ws.receive_str() == '{"type":"session.update"}'
        await ws.ping(b"p")
        pong = await ws.receive()
        assert (pong.type, pong.data) == (WSMsgType.PONG, b"p")


async def test_worker_pings_the_client() -> None:
    async def pings(socket: web.WebSocketResponse) -> None:
        await socket.ping(b"are you there")
        await echoes(socket)

    async with (
        worker(pings) as url,
        gateway(url) as running,
        aiohttp.ClientSession() as session,
        connected(running, session, autoping=False) as ws,
    ):
        ping = await ws.receive()
        assert (ping.type, ping.data) == (WSMsgType.PING, b"are you there")


async def test_client_closes_in_order() -> None:
    codes: list[int | None] = []

    async def notes_the_code(socket: web.WebSocketResponse) -> None:
        await echoes(socket)
        codes.append(socket.close_code)

    async with worker(notes_the_code) as url, gateway(url) as running, aiohttp.ClientSession() as session:
        async with connected(running, session) as ws:
            await ws.close(code=4001)
        await running.at_rest()
        assert codes == [4001]
        assert running.counted("kvgate_requests_total", status="101", outcome="done") == 1


async def test_worker_closes_in_order() -> None:
    async def closes(socket: web.WebSocketResponse) -> None:
        await socket.send_str("last words")
        await socket.close(code=1001, message=b"enough")

    async with worker(closes) as url, gateway(url) as running, aiohttp.ClientSession() as session:
        async with connected(running, session) as ws:
            assert await ws.receive_str() == "last words"
            close = await ws.receive()
            assert (close.type, close.data, close.extra) == (WSMsgType.CLOSE, 1001, "enough")
        await running.at_rest()
        assert running.counted("kvgate_requests_total", status="101", outcome="done") == 1


async def test_client_leaves_without_a_word() -> None:
    left = asyncio.Event()

    async def notes_the_end(socket: web.WebSocketResponse) -> None:
        await echoes(socket)
        left.set()

    async with worker(notes_the_end) as url, gateway(url) as running, aiohttp.ClientSession() as session:
        async with connected(running, session) as ws:
            await ws.send_str("x")
            await ws.receive_str()
            ws._response.connection.transport.abort()
            await left.wait()
        await running.at_rest()


async def test_worker_dies() -> None:
    async def dies(socket: web.WebSocketResponse) -> None:
        await socket.receive()
        socket._req.transport.abort()

    async with worker(dies) as url, gateway(url) as running, aiohttp.ClientSession() as session:
        async with connected(running, session) as ws:
            await ws.send_str("x")
            closed = await ws.receive()
            assert closed.type in (WSMsgType.CLOSED, WSMsgType.ERROR)
            assert ws.close_code == aiohttp.WSCloseCode.ABNORMAL_CLOSURE
        await running.at_rest()


async def test_worker_refuses() -> None:
    async with worker(echoes) as url, gateway(url) as running, aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
            await session.ws_connect(f"http://127.0.0.1:{running.port}/v1/realtime?model=m&refuse=1")
        assert refusal.value.status == 403


async def test_slow_reader_gets_every_message() -> None:
    num_messages, sent = 40, 0
    message = "x" * MESSAGE_BYTES

    async def floods(socket: web.WebSocketResponse) -> None:
        nonlocal sent
        for _ in range(num_messages):
            await socket.send_str(message)
            sent += 1

    async with (
        worker(floods) as url,
        gateway(url) as running,
        aiohttp.ClientSession() as session,
        connected(running, session) as ws,
    ):
        (connection,) = running.server._connections
        client_end = connection.relay._tunnel._client_end
        await eventually(
            lambda: client_end.paused_at is not None
        )  # nothing is read until the worker is held up
        assert sent < num_messages
        for _ in range(num_messages):
            assert await ws.receive_str() == message
