"""Clients that leave or read slowly, and a gateway that drains: workers stop, bookings go."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest

from router.limits import WRITE_BUFFER_HIGH
from tests.support.raw_worker import (
    END_OF_CHUNKS,
    STREAM_HEAD,
    RawWorker,
    WorkerSide,
    chunk,
    event,
    json_answer,
)
from tests.support.relay import CLOCK, gateway, get, post
from tests.support.waiting import eventually


async def waits(side: WorkerSide) -> None:
    await side.peer_left()


async def waits_behind_the_head(side: WorkerSide) -> None:
    await side.send(STREAM_HEAD)
    await side.peer_left()


async def waits_in_the_stream(side: WorkerSide) -> None:
    await side.send(STREAM_HEAD + chunk(event("a")))
    await side.peer_left()


async def waits_in_a_body(side: WorkerSide) -> None:
    await side.send(json_answer(b"x" * 100)[:-50])
    await side.peer_left()


@pytest.mark.parametrize(
    ("script", "phase"),
    [
        (waits, "waiting"),
        (waits_behind_the_head, "waiting"),
        (waits_in_the_stream, "answer"),
        (waits_in_a_body, "answer"),
    ],
)
@pytest.mark.parametrize("half_closed", [True, False])
async def test_client_that_leaves_stops_the_worker(script: object, phase: str, half_closed: bool) -> None:
    async with RawWorker(script) as worker, gateway(worker) as running, running.client() as client:
        await client.send(post())
        if phase == "answer":
            await client.reader.readuntil(b"\r\n\r\n")
        await eventually(lambda: worker.sides and worker.sides[0].num_requests)
        if half_closed:
            client.writer.write_eof()
        else:
            client.writer.transport.abort()
        await worker.sides[0].gone.wait()
        await running.at_rest()
        assert running.counted("kvgate_client_gone_total", phase=phase) == 1
        assert running.counted("kvgate_requests_total", outcome="client_gone") == 1


async def test_client_that_leaves_while_its_prompt_is_prepared() -> None:
    class Endless:
        async def prompt(self, *_: object) -> None:
            started.set()
            await asyncio.Event().wait()

    started = asyncio.Event()
    async with RawWorker(waits) as worker, gateway(worker, tokens=Endless(), policy="kv") as running:
        async with running.client() as client:
            await client.send(post())
            await started.wait()
        await running.at_rest()
        assert worker.requests == []
        assert running.counted("kvgate_client_gone_total", phase="routing") == 1


async def test_client_that_leaves_in_the_middle_of_its_body() -> None:
    async with RawWorker(waits) as worker, gateway(worker) as running:
        async with running.client() as client:
            await client.send(post(b"x" * 1000)[:-500])
            await eventually(lambda: running.server.collected_bytes == 500)
        await running.at_rest()
        assert worker.requests == []


async def test_client_that_leaves_with_requests_waiting_in_line() -> None:
    async with RawWorker(waits) as worker, gateway(worker) as running:
        async with running.client() as client:
            await client.send(post() * 3)
            await eventually(lambda: worker.requests)
        await running.at_rest()
        assert len(worker.requests) == 1


async def test_slow_client_pauses_the_worker_and_gets_every_byte() -> None:
    data = chunk(event("x" * 4000))
    num_chunks = 5000  # 20 MB: far beyond what kernel buffers hold
    sent = 0

    async def script(side: WorkerSide) -> None:
        nonlocal sent
        await side.send(STREAM_HEAD)
        for _ in range(num_chunks):
            await side.send(data)
            sent += 1
        await side.send(END_OF_CHUNKS)

    async with (
        RawWorker(script) as worker,
        gateway(worker, idle_seconds=0.1) as running,
        running.client() as client,
    ):
        client.writer.transport.pause_reading()
        await client.send(post())
        (connection,) = await eventually(lambda: list(running.server._connections))
        await eventually(lambda: connection.is_paused)
        worker_side = worker.sides[0].writer.transport
        _, high = worker_side.get_write_buffer_limits()
        await eventually(lambda: worker_side.get_write_buffer_size() > high, what="the worker is held up")
        assert sent < num_chunks
        connection.check(CLOCK() + 1.0)  # the idle limit rests while the client is the slow one
        # One read of the worker's bytes may come on top before it is paused.
        assert connection.transport.get_write_buffer_size() <= WRITE_BUFFER_HIGH + (256 << 10)
        client.writer.transport.resume_reading()
        answer = await client.answer()
        assert answer.raw_body == data * num_chunks + END_OF_CHUNKS


async def test_client_that_takes_nothing_is_cut() -> None:
    async def script(side: WorkerSide) -> None:
        await side.send(STREAM_HEAD)
        while True:
            await side.send(chunk(event("x" * 60_000)))

    limits = {"client_write_seconds": 0.1}
    async with RawWorker(script) as worker, gateway(worker, **limits) as running, running.client() as client:
        client.writer.transport.pause_reading()
        await client.send(post())
        await eventually(lambda: worker.sides and worker.sides[0].gone.is_set())
        await running.at_rest()
        assert running.counted("kvgate_client_gone_total", phase="slow") == 1


# Drain


async def test_drain_lets_streams_finish_and_closes_their_connections() -> None:
    release = asyncio.Event()

    async def script(side: WorkerSide) -> None:
        await side.send(STREAM_HEAD + chunk(event("a")))
        await release.wait()
        await side.send(chunk(event("b")) + END_OF_CHUNKS)

    async with (
        RawWorker(script) as worker,
        gateway(worker) as running,
        running.client() as client,
        running.client() as idle,
    ):
        await idle.send(get("/health"))
        await idle.answer()
        await client.send(post())
        await client.reader.readuntil(event("a"))
        drained = asyncio.ensure_future(running.server.drain(10))
        assert await idle.closed() == b""
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", running.port)
        release.set()
        assert event("b") in await client.closed()
        assert await drained is True


async def test_answers_during_a_drain_say_that_the_connection_closes() -> None:
    release = asyncio.Event()

    async def script(side: WorkerSide) -> None:
        await release.wait()
        await side.send(json_answer())

    async with RawWorker(script) as worker, gateway(worker) as running, running.client() as client:
        await client.send(post())
        await eventually(lambda: worker.requests)
        drained = asyncio.ensure_future(running.server.drain(10))
        await asyncio.sleep(0)
        release.set()
        answer = await client.answer()
        assert answer.value("connection") == "close"
        assert await client.closed() == b""
        assert await drained is True


async def test_drain_ends_a_stream_that_takes_longer_with_an_error_event() -> None:
    async with RawWorker(waits_in_the_stream) as worker, gateway(worker) as running:
        async with running.client() as client:
            await client.send(post())
            await client.reader.readuntil(event("a"))
            assert await running.server.drain(0.01) is False
            await worker.sides[0].gone.wait()
            assert b'"code":"shutting_down"' in await client.closed()
        await running.at_rest()
        assert running.counted("kvgate_requests_total", outcome="drained") == 1


async def test_drain_answers_503_where_the_worker_has_not_answered_in_time() -> None:
    async def script(side: WorkerSide) -> None:
        await side.gone.wait()

    async with RawWorker(script) as worker, gateway(worker) as running, running.client() as client:
        await client.send(post())
        await eventually(lambda: worker.requests)
        drained = asyncio.ensure_future(running.server.drain(0.01))
        answer = await client.answer()
        assert (answer.status, b'"shutting_down"' in answer.body) == (503, True)
        assert await drained is False


async def test_clients_that_reset_in_mid_stream_leave_no_trace(caplog: pytest.LogCaptureFixture) -> None:
    """In the turn in which a reset is read, workers' events for that client may be read as well."""

    async def streams_without_end(side: WorkerSide) -> None:
        side.writer.write(STREAM_HEAD)
        while not side.writer.is_closing():
            side.writer.write(chunk(event("a")))
            await asyncio.sleep(0)

    async def leave(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        writer.write(post())
        await reader.readuntil(b"data:")
        writer.transport.abort()

    async with RawWorker(streams_without_end) as worker, gateway(worker) as running:
        for _ in range(4):
            await asyncio.gather(*(leave(running.port) for _ in range(25)))
        await running.at_rest()
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []
