"""WebSocket tunnels between raw peers: who gets one, bytes both ways, slowness, and every way to end."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from router.config import Settings
from router.limits import WRITE_BUFFER_HIGH
from tests.support.raw_worker import RawWorker, WorkerSide, answering, json_answer
from tests.support.relay import Gateway, RawClient, gateway, get, post
from tests.support.tunnels import SWITCH, agreeing, echoes, opening, waits
from tests.support.waiting import eventually

FORBIDDEN = b"HTTP/1.1 403 Forbidden\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\nno"
BLOCK = bytes(range(256)) * 256  # 64 KiB


async def open_tunnel(client: RawClient, **headers: str) -> bytes:
    """Returns the head of the answer that opened it."""
    await client.send(opening(**headers))
    head = await client.reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
    return head


def counted(running: Gateway, outcome: str) -> float:
    return running.counted("kvgate_requests_total", endpoint="/v1/realtime", outcome=outcome)


# Who gets one


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (opening(without="Sec-WebSocket-Key"), 400),
        (opening(without="Sec-WebSocket-Version"), 400),
        (opening(without="Connection"), 400),
        (opening(without="Upgrade"), 400),
        (opening(Content_Length="3") + b"abc", 400),
        (opening().replace(b"HTTP/1.1", b"HTTP/1.0"), 400),
        (opening().replace(b"GET", b"HEAD"), 405),
        (opening().replace(b"GET", b"POST"), 405),
        (opening("/v1/realtime?model=nobody"), 404),
        (opening("/v1/chat/completions"), 501),
        (opening("/sleep"), 501),
        (get("/v1/realtime"), 400),
        (post(path="/v1/realtime"), 405),
    ],
)
async def test_what_opens_no_tunnel(data: bytes, status: int) -> None:
    async with (
        RawWorker(agreeing(echoes)) as worker,
        gateway(worker) as running,
        running.client() as client,
    ):
        await client.send(data)
        assert (await client.answer()).status == status
        assert worker.requests == []


async def test_handshake_goes_on_as_it_came() -> None:
    async with (
        RawWorker(agreeing(echoes)) as worker,
        gateway(worker) as running,
        running.client() as client,
    ):
        head = await open_tunnel(client, Authorization="Bearer a", Sec_WebSocket_Protocol="realtime, x")
        lines = head.lower().split(b"\r\n")
        assert {b"upgrade: websocket", b"connection: upgrade"} < set(lines)
        assert b"sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=" in lines
        assert b"x-kvgate-worker: " + worker.id.encode() in lines
        (request,) = worker.requests
        assert request.request_line == b"GET /v1/realtime?model=m HTTP/1.1"
        assert (request.values("upgrade"), request.values("connection")) == ([b"websocket"], [b"upgrade"])
        assert request.values("sec-websocket-key") == [b"dGhlIHNhbXBsZSBub25jZQ=="]
        assert request.values("sec-websocket-protocol") == [b"realtime, x"]
        assert request.values("authorization") == [b"Bearer a"]


async def test_the_model_in_the_query_chooses_the_worker() -> None:
    async with (
        RawWorker(agreeing(echoes)) as one,
        RawWorker(agreeing(echoes)) as other,
        gateway(one, other, models=[["a"], ["b"]]) as running,
    ):
        for _ in range(2):
            async with running.client() as client:
                await client.send(opening("/v1/realtime?model=b"))
                await client.reader.readuntil(b"\r\n\r\n")
        assert (len(one.requests), len(other.requests)) == (0, 2)
        assert (await running.ask(opening("/v1/realtime"))).status == 400


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Sec_WebSocket_Protocol": "realtime, openai-insecure-api-key.wrong"}, 401),
        ({"Authorization": "Bearer secret"}, 101),
        ({"Sec_WebSocket_Protocol": "realtime, openai-insecure-api-key.secret"}, 101),
    ],
)
async def test_keys_are_asked_for_and_go_no_further(headers: dict[str, str], status: int) -> None:
    settings = Settings(policy="round_robin", api_key=("secret",))
    async with (
        RawWorker(agreeing(echoes)) as worker,
        gateway(worker, settings=settings) as running,
        running.client() as client,
    ):
        await client.send(opening(**headers))
        assert (await client.answer()).status == status
        assert len(worker.requests) == (status == 101)
        assert all(b"secret" not in request.head for request in worker.requests)


async def test_worker_that_declines_is_heard_and_the_connection_ends() -> None:
    async with RawWorker(answering(FORBIDDEN)) as worker, gateway(worker) as running:
        async with running.client() as client:
            await client.send(opening() + b"not a request")
            answer = await client.answer()
            assert (answer.status, answer.body, answer.value("connection")) == (403, b"no", "close")
            assert await client.closed() == b""
        await running.at_rest()
        assert running.proxy.upstream.num_idle == 1
        assert running.counted("kvgate_requests_total", status="403", outcome="done") == 1


async def test_worker_that_dies_in_the_handshake_is_replaced() -> None:
    async def dies(side: WorkerSide) -> None:
        side.close()

    async with (
        RawWorker(dies) as bad,
        RawWorker(agreeing(echoes)) as good,
        gateway(bad, good) as running,
    ):
        for _ in range(2):
            async with running.client() as client:
                await open_tunnel(client)
        assert len(good.requests) == 2
        assert running.counted("kvgate_retries_total", worker=bad.id) == len(bad.requests) >= 1


async def test_handshake_that_nobody_answers() -> None:
    async with RawWorker(waits) as worker, gateway(worker, first_byte_seconds=0.05) as running:
        answer = await running.ask(opening())
        assert (answer.status, b"first_byte_timeout" in answer.body) == (504, True)


# Bytes


async def test_any_bytes_pass_both_ways_and_are_booked() -> None:
    async with RawWorker(agreeing(echoes)) as worker, gateway(worker) as running:
        async with running.client() as client:
            await open_tunnel(client)
            for data in (b"\x00", b"GET / HTTP/1.1\r\n\r\n", BLOCK):
                await client.send(data)
                assert await client.reader.readexactly(len(data)) == data
            assert running.num_booked == 1
            client.writer.write_eof()
            assert await client.closed() == b""
        await running.at_rest()
        assert counted(running, "done") == running.counted("kvgate_requests_total", status="101") == 1
        assert running.proxy.upstream.num_idle == 0


async def test_bytes_that_come_with_the_handshakes_are_not_lost() -> None:
    async def script(side: WorkerSide) -> None:
        await side.send(SWITCH + b"hello")
        await echoes(side)

    async with RawWorker(script) as worker, gateway(worker) as running, running.client() as client:
        await client.send(opening() + b"early")
        assert (await client.reader.readuntil(b"early")).endswith(b"\r\n\r\nhelloearly")


async def test_client_that_sends_much_before_the_tunnel_is_open_is_not_read() -> None:
    agree = asyncio.Event()

    async def script(side: WorkerSide) -> None:
        await agree.wait()
        await agreeing(echoes)(side)

    data = BLOCK * 200
    async with RawWorker(script) as worker, gateway(worker) as running, running.client() as client:
        sent = asyncio.ensure_future(client.send(opening() + data))
        (connection,) = await eventually(lambda: list(running.server._connections))
        await eventually(lambda: not connection.transport.is_reading())
        assert len(connection._early) < 1 << 20
        agree.set()
        await client.reader.readuntil(b"\r\n\r\n")
        assert await client.reader.readexactly(len(data)) == data
        await sent


async def test_handshake_waits_for_its_turn() -> None:
    async def script(side: WorkerSide) -> None:
        if side.request.request_line.startswith(b"GET"):
            await agreeing(echoes)(side)
        else:
            await side.send(json_answer())

    async with RawWorker(script) as worker, gateway(worker) as running, running.client() as client:
        await client.send(post() + opening() + b"early")
        assert (await client.answer()).body == b'{"ok":true}'
        assert (await client.answer()).status == 101
        assert await client.reader.readexactly(5) == b"early"


async def test_slow_client_pauses_the_worker_and_gets_every_byte() -> None:
    num_blocks, sent = 400, 0

    async def script(side: WorkerSide) -> None:
        nonlocal sent
        await side.send(SWITCH)
        for _ in range(num_blocks):
            await side.send(BLOCK)
            sent += 1
        side.close()

    async with (
        RawWorker(script) as worker,
        gateway(worker, idle_seconds=0.1) as running,
        running.client() as client,
    ):
        await open_tunnel(client)
        client.writer.transport.pause_reading()
        (connection,) = running.server._connections
        await paused(running)
        assert sent < num_blocks
        # One read of the worker's bytes may come on top before it is paused.
        assert connection.transport.get_write_buffer_size() <= WRITE_BUFFER_HIGH + (256 << 10)
        client.writer.transport.resume_reading()
        assert await client.closed() == BLOCK * num_blocks


async def test_slow_worker_pauses_the_client_and_gets_every_byte() -> None:
    read_on, data = asyncio.Event(), BLOCK * 400

    async def script(side: WorkerSide) -> None:
        await side.send(SWITCH)
        side.writer.transport.pause_reading()
        await read_on.wait()
        side.writer.transport.resume_reading()
        await side.send(b"whole" if await side.reader.readexactly(len(data)) == data else b"broken")
        side.close()

    async with RawWorker(script) as worker, gateway(worker) as running, running.client() as client:
        await open_tunnel(client)
        sent = asyncio.ensure_future(client.send(data))
        await paused(running)
        await eventually(client.writer.transport.get_write_buffer_size)
        assert not sent.done()
        read_on.set()
        await sent
        assert await client.closed() == b"whole"


async def paused(running: Gateway) -> None:
    """Wait until one side of the only tunnel takes bytes more slowly than they come."""
    (connection,) = running.server._connections
    ends = connection.relay._tunnel._client_end, connection.relay._tunnel._worker_end
    await eventually(lambda: any(end.paused_at is not None for end in ends), what="a side is paused")


async def test_client_that_takes_nothing_is_cut() -> None:
    async def floods(side: WorkerSide) -> None:
        while True:
            await side.send(BLOCK)

    async with (
        RawWorker(agreeing(floods)) as worker,
        gateway(worker, client_write_seconds=0.1) as running,
        running.client() as client,
    ):
        await open_tunnel(client)
        client.writer.transport.pause_reading()
        await worker.sides[0].gone.wait()
        await running.at_rest()
        assert running.counted("kvgate_client_gone_total", phase="slow") == 1


async def test_worker_that_takes_nothing_is_given_up() -> None:
    async def takes_nothing(side: WorkerSide) -> None:
        side.writer.transport.pause_reading()
        await asyncio.Event().wait()

    async with (
        RawWorker(agreeing(takes_nothing)) as worker,
        gateway(worker, idle_seconds=0.1) as running,
        running.client() as client,
    ):
        await open_tunnel(client)
        with contextlib.suppress(ConnectionError):
            await client.send(BLOCK * 400)
            await client.closed()
        await running.at_rest()
        assert counted(running, "timed_out") == 1


# Ends


async def test_client_that_ends_lets_the_worker_finish() -> None:
    async def finishes(side: WorkerSide) -> None:
        assert await side.reader.read() == b"last words"
        await side.send(b"answer")
        side.close()

    async with RawWorker(agreeing(finishes)) as worker, gateway(worker) as running:
        async with running.client() as client:
            await open_tunnel(client)
            await client.send(b"last words")
            client.writer.write_eof()
            assert await client.closed() == b"answer"
        await running.at_rest()
        assert counted(running, "done") == 1


async def test_worker_that_ends_lets_the_client_finish() -> None:
    heard = asyncio.get_running_loop().create_future()

    async def says_goodbye(side: WorkerSide) -> None:
        await side.send(b"goodbye")
        side.writer.write_eof()
        heard.set_result(await side.reader.read())

    async with RawWorker(agreeing(says_goodbye)) as worker, gateway(worker) as running:
        async with running.client() as client:
            await open_tunnel(client)
            assert await client.closed() == b"goodbye"
            assert running.num_booked == 1
            await client.send(b"last words")
            client.writer.write_eof()
            assert await heard == b"last words"
        await running.at_rest()
        assert counted(running, "done") == 1


@pytest.mark.parametrize("first", ["client", "worker"])
async def test_side_that_does_not_end_after_the_other_is_not_waited_for(first: str) -> None:
    async def script(side: WorkerSide) -> None:
        if first == "worker":
            side.writer.write_eof()
        await side.gone.wait()

    async with (
        RawWorker(agreeing(script)) as worker,
        gateway(worker, linger_seconds=0.1) as running,
        running.client() as client,
    ):
        await open_tunnel(client)
        if first == "client":
            client.writer.write_eof()
        assert await client.closed() == b""
        client.leave()
        await running.at_rest()
        assert counted(running, "done") == 1


async def test_client_that_is_gone_takes_the_worker_along() -> None:
    async with RawWorker(agreeing(waits)) as worker, gateway(worker) as running:
        async with running.client() as client:
            await open_tunnel(client)
            await client.send(b"x")
        await worker.sides[0].gone.wait()
        await running.at_rest()
        assert running.counted("kvgate_requests_total", endpoint="/v1/realtime") == 1


async def test_client_that_leaves_in_the_handshake() -> None:
    async with RawWorker(waits) as worker, gateway(worker) as running:
        async with running.client() as client:
            await client.send(opening())
            await eventually(lambda: worker.requests)
        await worker.sides[0].gone.wait()
        await running.at_rest()
        assert running.counted("kvgate_client_gone_total", phase="waiting") == 1


async def test_worker_that_dies_ends_the_tunnel() -> None:
    async def dies(side: WorkerSide) -> None:
        await side.send(b"half a fra")
        await side.reader.readexactly(1)
        side.reset()

    async with RawWorker(agreeing(dies)) as worker, gateway(worker) as running:
        async with running.client() as client:
            await open_tunnel(client)
            await client.reader.readexactly(10)
            await client.send(b"x")
            assert await client.closed() == b""
        await running.at_rest()
        assert counted(running, "worker_failed") == 1
        assert running.counted("kvgate_stream_errors_total", placed="false") == 1
        assert running.counted("kvgate_retries_total") == 0


async def test_tunnel_that_is_silent_is_closed() -> None:
    async with RawWorker(agreeing(waits)) as worker, gateway(worker, idle_seconds=0.1) as running:
        async with running.client() as client:
            await open_tunnel(client)
            assert await client.closed() == b""
        await worker.sides[0].gone.wait()
        await running.at_rest()
        assert counted(running, "timed_out") == 1
        assert running.counted("kvgate_errors_total", kind="idle_timeout") == 1


async def test_drain_waits_for_tunnels_and_then_ends_them() -> None:
    async with RawWorker(agreeing(waits)) as worker, gateway(worker) as running:
        async with running.client() as client:
            await open_tunnel(client)
            assert await running.server.drain(0.05) is False
            assert await client.closed() == b""
        await worker.sides[0].gone.wait()
        await running.at_rest()
        assert counted(running, "drained") == 1


async def test_stop_ends_tunnels_at_once() -> None:
    async with RawWorker(agreeing(waits)) as worker, gateway(worker) as running:
        async with running.client() as client:
            await open_tunnel(client)
            running.server.stop()
            with contextlib.suppress(ConnectionResetError):
                await client.closed()
        await worker.sides[0].gone.wait()
        await running.at_rest()
        assert counted(running, "drained") == 1
