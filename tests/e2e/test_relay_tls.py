"""The relay with TLS towards clients and towards workers: bytes, order, back-pressure, leaving, failing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from router import server
from router.limits import WRITE_BUFFER_HIGH
from router.tls import server_context
from tests.support.certificates import client_context, pair_files, worker_trust
from tests.support.raw_worker import (
    END_OF_CHUNKS,
    STREAM_HEAD,
    RawWorker,
    Script,
    WorkerSide,
    answering,
    chunk,
    event,
    json_answer,
)
from tests.support.relay import Gateway, RawClient, gateway, get, post
from tests.support.tunnels import agreeing, echoes, opening
from tests.support.waiting import eventually

SIDES = pytest.mark.parametrize("sides", ["client", "worker", "both"])


@contextlib.asynccontextmanager
async def relay(
    script: Script, directory: Path, sides: str = "both", **options: Any
) -> AsyncIterator[tuple[RawWorker, Gateway]]:
    """A gateway before one worker, with TLS on these sides."""
    files = pair_files(directory)
    context = server_context(files.cert, files.key)
    async with (
        RawWorker(script, tls=context if sides != "client" else None) as worker,
        gateway(
            worker,
            tls=context if sides != "worker" else None,
            worker_tls=worker_trust(directory),
            **options,
        ) as running,
    ):
        yield worker, running


@SIDES
async def test_events_arrive_one_by_one(tmp_path: Path, sides: str) -> None:
    seen = asyncio.Queue[None]()

    async def script(side: WorkerSide) -> None:
        await side.send(STREAM_HEAD)
        for text in "abc":
            await side.send(chunk(event(text)))
            await seen.get()
        await side.send(END_OF_CHUNKS)

    async with relay(script, tmp_path, sides) as (_, running), running.client() as client:
        await client.send(post())
        await client.reader.readuntil(b"\r\n\r\n")
        for text in "abc":
            assert await client.reader.readuntil(b"\n\n\r\n") == chunk(event(text))
            seen.put_nowait(None)
        assert await client.reader.readuntil(b"0\r\n\r\n") == END_OF_CHUNKS


@SIDES
async def test_connections_are_kept_on_both_sides(tmp_path: Path, sides: str) -> None:
    async with relay(answering(json_answer()), tmp_path, sides) as (worker, running):
        async with running.client() as client:
            for _ in range(5):
                await client.send(post())
                assert (await client.answer()).body == b'{"ok":true}'
        assert [side.num_requests for side in worker.sides] == [5]


@SIDES
async def test_large_bodies_pass_unchanged(tmp_path: Path, sides: str) -> None:
    body = b'{"model":"m","prompt":"' + bytes(range(32, 34))[:1] * (8 << 20) + b'"}'
    answer = bytes(range(256)) * (32 << 10)

    async with relay(answering(json_answer(answer)), tmp_path, sides) as (worker, running):
        async with running.client() as client:
            for _ in range(2):
                await client.send(post(body))
                assert (await client.answer()).body == answer
        assert [request.body == body for request in worker.requests] == [True, True]


@SIDES
async def test_slow_client_pauses_the_worker_and_gets_every_byte(tmp_path: Path, sides: str) -> None:
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

    async with relay(script, tmp_path, sides) as (worker, running), running.client() as client:
        client.writer.transport.pause_reading()
        await client.send(post())
        (connection,) = await eventually(lambda: list(running.server._connections))
        await eventually(lambda: connection.is_paused)
        await eventually(lambda: worker.sides[0].writer.transport.get_write_buffer_size() > 0)
        assert sent < num_chunks
        # One read of the worker's bytes may come on top before it is paused.
        assert connection.transport.get_write_buffer_size() <= WRITE_BUFFER_HIGH + (256 << 10)
        client.writer.transport.resume_reading()
        answer = await client.answer()
        assert answer.raw_body == data * num_chunks + END_OF_CHUNKS


async def waits(side: WorkerSide) -> None:
    await side.peer_left()


async def waits_in_the_stream(side: WorkerSide) -> None:
    await side.send(STREAM_HEAD + chunk(event("a")))
    await side.peer_left()


async def waits_in_a_body(side: WorkerSide) -> None:
    await side.send(json_answer(b"x" * 100)[:-50])
    await side.peer_left()


@SIDES
@pytest.mark.parametrize("script", [waits, waits_in_the_stream, waits_in_a_body])
@pytest.mark.parametrize("politely", [True, False])
async def test_client_that_leaves_stops_the_worker(
    tmp_path: Path, sides: str, script: Script, politely: bool
) -> None:
    """`politely`: with the farewell of TLS, else by a bare end of the connection."""
    async with relay(script, tmp_path, sides) as (worker, running), running.client() as client:
        await client.send(post())
        if script is not waits:
            await client.reader.readuntil(b"\r\n\r\n")
        await eventually(lambda: worker.sides and worker.sides[0].num_requests)
        if politely:
            client.writer.close()
        else:
            client.writer.transport.abort()
        await worker.sides[0].gone.wait()
        await running.at_rest()
        assert running.counted("kvgate_requests_total", outcome="client_gone") == 1


async def test_client_that_leaves_while_it_reads_nothing_is_noticed(tmp_path: Path) -> None:
    """What waits for it in the gateway is no reason to wait for its farewell."""

    async def script(side: WorkerSide) -> None:
        await side.send(STREAM_HEAD)
        while not side.writer.is_closing():
            await side.send(chunk(event("x" * 60_000)))

    async with relay(script, tmp_path) as (worker, running), running.client() as client:
        client.writer.transport.pause_reading()
        await client.send(post())
        (connection,) = await eventually(lambda: list(running.server._connections))
        await eventually(lambda: connection.is_paused)
        client.writer.transport.abort()
        await worker.sides[0].gone.wait()
        await running.at_rest()


@SIDES
async def test_client_that_takes_nothing_is_cut(tmp_path: Path, sides: str) -> None:
    async def script(side: WorkerSide) -> None:
        await side.send(STREAM_HEAD)
        while True:
            await side.send(chunk(event("x" * 60_000)))

    limits = {"client_write_seconds": 0.1}
    async with relay(script, tmp_path, sides, **limits) as (worker, running), running.client() as client:
        client.writer.transport.pause_reading()
        await client.send(post())
        await eventually(lambda: worker.sides and worker.sides[0].gone.is_set())
        await running.at_rest()
        assert running.counted("kvgate_client_gone_total", phase="slow") == 1


# Failing workers


@pytest.mark.parametrize("ending", [WorkerSide.close, WorkerSide.reset])
async def test_worker_that_dies_in_mid_stream_ends_in_an_error_event(tmp_path: Path, ending: Any) -> None:
    async def script(side: WorkerSide) -> None:
        await side.send(STREAM_HEAD + chunk(event("a")))
        await seen.wait()
        ending(side)
        await side.peer_left()

    seen = asyncio.Event()
    async with relay(script, tmp_path) as (_, running), running.client() as client:
        await client.send(post())
        await client.reader.readuntil(event("a"))
        seen.set()
        assert b'"error"' in await client.reader.readuntil(END_OF_CHUNKS)


async def test_broken_answer_is_no_whole_one_to_an_http10_client(tmp_path: Path) -> None:
    """Where the end of the connection ends the body, neither TLS's farewell nor a FIN may follow."""

    async def script(side: WorkerSide) -> None:
        await side.send(STREAM_HEAD + chunk(event("a")))
        await seen.wait()
        side.close()
        await side.peer_left()

    seen = asyncio.Event()
    async with relay(script, tmp_path) as (_, running), running.client() as client:
        await client.send(post().replace(b"HTTP/1.1", b"HTTP/1.0"))
        await client.reader.readuntil(event("a"))
        seen.set()
        with pytest.raises(ConnectionResetError):
            await client.closed()


async def test_worker_that_closes_a_kept_connection_is_asked_again(tmp_path: Path) -> None:
    async def script(side: WorkerSide) -> None:
        if side.num_requests == 1:
            await side.send(json_answer())
        else:
            side.close()
            await side.peer_left()

    async with relay(script, tmp_path) as (worker, running), running.client() as client:
        for _ in range(3):
            await client.send(post())
            assert (await client.answer()).status == 200
        assert [side.num_requests for side in worker.sides] == [2, 2, 1]


async def test_answer_that_ends_with_its_connection(tmp_path: Path) -> None:
    async def script(side: WorkerSide) -> None:
        await side.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n[1,")
        await side.send(b"2]")
        side.close()
        await side.peer_left()

    async with relay(script, tmp_path) as (_, running), running.client() as client:
        await client.send(post())
        assert (await client.answer()).body == b"[1,2]"


async def test_answer_whose_end_lacks_the_farewell_of_tls_is_no_whole_one(tmp_path: Path) -> None:
    """Anyone on the way can end a TCP connection; that its worker meant it, only `close_notify` says."""

    async def script(side: WorkerSide) -> None:
        await side.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n[1,2]")
        await seen.wait()
        with socket.socket(fileno=os.dup(side.writer.get_extra_info("socket").fileno())) as bare:
            bare.shutdown(socket.SHUT_WR)
        await side.peer_left()

    seen = asyncio.Event()
    async with relay(script, tmp_path) as (_, running), running.client() as client:
        await client.send(post())
        await client.reader.readuntil(chunk(b"[1,2]"))
        seen.set()
        assert await client.closed() == b"", "the end of the chunks would say that this was all"
        assert running.counted("kvgate_requests_total", outcome="worker_failed") == 1


class MuteWorker:
    """Takes connections and answers no handshake."""

    async def __aenter__(self) -> MuteWorker:
        self.met, self.left = asyncio.Event(), asyncio.Event()
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"https://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.met.set()
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
        self.left.set()
        writer.close()


async def test_worker_that_never_ends_its_handshake_times_out(tmp_path: Path) -> None:
    trust = worker_trust(tmp_path)
    async with MuteWorker() as mute, gateway(mute.url, worker_tls=trust, connect_seconds=0.1) as running:
        answer = await running.ask(post())
        assert (answer.status, b'"connect_timeout"' in answer.body) == (504, True)
        await mute.left.wait()


async def test_client_that_leaves_during_the_workers_handshake_ends_it(tmp_path: Path) -> None:
    async with MuteWorker() as mute, gateway(mute.url, worker_tls=worker_trust(tmp_path)) as running:
        async with running.client() as client:
            await client.send(post())
            await mute.met.wait()
        await mute.left.wait()
        await running.at_rest()


# Clients


async def test_refusal_reaches_a_client_that_is_still_sending(tmp_path: Path) -> None:
    limits = {"body_bytes": 1000}
    async with relay(waits, tmp_path, **limits) as (_, running), running.client() as client:
        client.writer.write(post(b"x" * (4 << 20)))
        assert (await client.answer()).status == 413
        assert await client.closed() == b""


async def test_last_bytes_wait_for_a_slow_client(tmp_path: Path) -> None:
    """Ending TLS waits for what is to be sent before; that may take as long as any write."""
    body = bytes(range(256)) * (64 << 10)
    async with relay(answering(json_answer(body)), tmp_path, "client", linger_seconds=0.05) as (_, running):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", running.port, limit=1024, ssl=client_context()
        )
        writer.write(post(extra="Connection: close\r\n"))
        await reader.readuntil(b"\r\n\r\n")
        received = bytearray()
        (connection,) = running.server._connections
        while not connection.transport.is_closing():
            received += await reader.read(4096)
        await asyncio.sleep(0.2)  # longer than the limit that must not count
        received += await reader.read()
        writer.close()
        assert received == body


async def test_connections_beyond_the_limit_are_told_so(tmp_path: Path) -> None:
    async with (
        relay(answering(json_answer()), tmp_path, max_connections=1) as (_, running),
        running.client() as first,
    ):
        await first.send(post())
        assert (await first.answer()).status == 200
        async with running.client() as second:
            await second.send(post())
            assert (await second.answer()).status == 503
            assert await second.closed() == b""
        first.leave()


async def test_plain_text_on_the_tls_port_is_dropped(tmp_path: Path) -> None:
    async with relay(answering(json_answer()), tmp_path) as (_, running):
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(get("/health"))
        with contextlib.suppress(ConnectionResetError):
            assert b"HTTP" not in await reader.read()
        writer.close()
        assert (await running.ask(post())).status == 200


async def test_client_that_never_ends_its_handshake_is_dropped(tmp_path: Path) -> None:
    async with relay(waits, tmp_path, head_seconds=0.1) as (_, running):
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()


async def silent_client(running: Gateway) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", running.port)


async def test_handshakes_under_way_count_as_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "SURPLUS_CONNECTIONS_MAX", 0)
    async with relay(answering(json_answer()), tmp_path, max_connections=2) as (_, running):
        silent = [await silent_client(running) for _ in range(2)]
        await eventually(lambda: running.server._listener.num_handshakes == 2)
        reader, writer = await silent_client(running)
        assert await reader.read() == b"", "closed, and not a byte of TLS said"
        writer.close()
        silent[0][1].close()
        await eventually(lambda: running.server._listener.num_handshakes == 1)
        assert (await running.ask(post())).status == 200
        silent[1][1].close()


async def test_drain_drops_handshakes_under_way(tmp_path: Path) -> None:
    async with relay(waits, tmp_path) as (_, running):
        reader, writer = await silent_client(running)
        await eventually(lambda: running.server._listener.num_handshakes == 1)
        assert await running.server.drain(60) is True
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()


async def test_tls_before_1_2_is_refused(tmp_path: Path) -> None:
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    async with relay(waits, tmp_path) as (_, running):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            async with running.client(tls=old):
                pass


async def test_http_1_1_is_what_a_client_of_http_2_is_offered(tmp_path: Path) -> None:
    modern = client_context("h2", "http/1.1")
    async with relay(waits, tmp_path) as (_, running), running.client(tls=modern) as client:
        assert client.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"


async def test_drain_does_not_wait_for_idle_clients_that_look_at_nothing(tmp_path: Path) -> None:
    """As those of clients without an event loop: their farewell comes with their next request."""
    async with (
        relay(answering(json_answer()), tmp_path, linger_seconds=0.1) as (_, running),
        running.client() as client,
    ):
        await client.send(post())
        await client.answer()
        client.writer.transport.pause_reading()
        async with asyncio.timeout(10):
            assert await running.server.drain(60) is True


async def test_drain_ends_tls_connections_too(tmp_path: Path) -> None:
    async with (
        relay(waits_in_the_stream, tmp_path) as (worker, running),
        running.client() as client,
        running.client() as idle,
    ):
        await idle.send(get("/health"))
        await idle.answer()
        await client.send(post())
        await client.reader.readuntil(event("a"))
        drained = asyncio.ensure_future(running.server.drain(0.05))
        assert await idle.closed() == b""
        assert b'"code":"shutting_down"' in await client.closed()
        assert await drained is False
        await worker.sides[0].gone.wait()


# Tunnels


async def opened(client: RawClient) -> None:
    await client.send(opening())
    head = await client.reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101 ")


@SIDES
async def test_bytes_pass_both_ways_through_a_tunnel(tmp_path: Path, sides: str) -> None:
    data = bytes(range(256)) * (16 << 10)  # 4 MiB: more than the kernel holds, so that each side waits
    async with relay(agreeing(echoes), tmp_path, sides) as (worker, running):
        async with running.client() as client:
            await opened(client)
            client.writer.write(data)
            assert await client.reader.readexactly(len(data)) == data
            client.leave()
        await worker.sides[0].gone.wait()
        await running.at_rest()
        assert running.counted("kvgate_requests_total", endpoint="/v1/realtime") == 1


@SIDES
async def test_last_bytes_of_a_worker_reach_the_client_of_a_tunnel(tmp_path: Path, sides: str) -> None:
    data = bytes(range(256)) * (4 << 10)

    async def says_goodbye(side: WorkerSide) -> None:
        await side.send(data)
        side.close()
        await side.peer_left()

    async with relay(agreeing(says_goodbye), tmp_path, sides) as (_, running), running.client() as client:
        await opened(client)
        assert await client.closed() == data
