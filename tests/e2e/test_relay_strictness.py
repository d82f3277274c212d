"""Requests that are ambiguous, too large or too slow are refused with an OpenAI-shaped error."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import orjson
import pytest

from router.config import Settings
from router.limits import SURPLUS_CONNECTIONS_MAX
from tests.support.raw_worker import RawWorker, WorkerSide, answering, json_answer
from tests.support.relay import CLOCK, gateway, get, post
from tests.support.waiting import eventually

GOOD = answering(json_answer())
LINE = b"POST /v1/completions HTTP/1.1\r\n"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (LINE + b"Host: g\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}", 400),
        (LINE + b"Host: g\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400),
        (LINE + b"Host: g\r\nContent-Length: 2, 2\r\n\r\n{}", 400),
        (LINE + b"Host: g\r\nContent-Length: +2\r\n\r\n{}", 400),
        (LINE + b"Host: g\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (LINE + b"Host: g\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n", 400),
        (LINE + b"Host: g\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (LINE + b"Host: g\r\nTransfer-Encoding: identity\r\n\r\n", 501),
        (LINE + b"Host: g\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (LINE.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (LINE + b"Host: g\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400),
        (LINE + b"Host: g\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}x", 400),
        (LINE + b"Host: g\r\nX: a\r\n b\r\nContent-Length: 2\r\n\r\n{}", 400),
        (LINE + b"Host: g\nContent-Length: 2\r\n\r\n{}", 400),
        (LINE.replace(b"\r\n", b"\n") + b"Host: g\nContent-Length: 2\n\n{}", 400),
        (LINE + b"Host: g\r\nX : a\r\n\r\n", 400),
        (LINE + b"Host: g\r\nX: a\x00b\r\n\r\n", 400),
        (LINE + b"\r\n", 400),
        (LINE + b"Host: a\r\nHost: b\r\n\r\n", 400),
        (b"POST /v1/completions HTTP/2.0\r\nHost: g\r\n\r\n", 400),
        (b"POST /v1/completions HTTP/1.9\r\nHost: g\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"OPTIONS * HTTP/1.1\r\nHost: g\r\n\r\n", 400),
        (b"POST ftp://h/v1/completions HTTP/1.1\r\nHost: g\r\n\r\n", 400),
        (b"BREW /v1/completions HTTP/1.1\r\nHost: g\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", 400),
        (b"CONNECT g:80 HTTP/1.1\r\nHost: g\r\n\r\n", 501),
        (get("/v1/chat/completions", extra="Connection: Upgrade\r\nUpgrade: websocket\r\n"), 501),
    ],
)
async def test_what_is_ambiguous_is_refused_and_the_connection_closed(data: bytes, status: int) -> None:
    async with RawWorker(GOOD) as worker, gateway(worker) as running, running.client() as client:
        await client.send(data)
        answer = await client.answer()
        assert answer.status == status
        assert set(orjson.loads(answer.body)["error"]) == {"message", "type", "param", "code"}
        assert answer.value("connection") == "close"
        assert await client.closed() == b""
        assert worker.requests == []


async def test_smuggled_request_is_not_read() -> None:
    smuggled = LINE + b"Host: g\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + post()
    async with RawWorker(GOOD) as worker, gateway(worker) as running, running.client() as client:
        await client.send(post() + smuggled)
        assert (await client.answer()).status == 200
        assert (await client.answer()).status == 400
        assert await client.closed() == b""
        assert len(worker.requests) == 1


# Sizes


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (get("/v1/models?" + "q" * 2000), 414),
        (get("/v1/models", extra="X: " + "y" * 5000 + "\r\n"), 431),
        (get("/v1/models", extra="X: y\r\n" * 2000), 431),
        (get("/v1/models", extra="X: y\r\n" * 700), 431),  # 4,200 bytes on the wire, 1,400 of them content
        (post(b"x" * 1001), 413),
        (
            LINE + b"Host: g\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n" + b"x" * 1001 + b"\r\n0\r\n\r\n",
            413,
        ),
    ],
)
async def test_what_is_too_large(data: bytes, status: int) -> None:
    limits = {"url_bytes": 1000, "head_bytes": 4000, "body_bytes": 1000}
    async with RawWorker(GOOD) as worker, gateway(worker, **limits) as running:
        answer = await running.ask(data)
        assert answer.status == status
        assert worker.requests == []
        assert running.counted("kvgate_errors_total") == 1


async def test_head_that_never_ends_is_refused_before_it_is_whole() -> None:
    async with gateway(head_bytes=4000) as running, running.client() as client:
        await client.send(b"GET /health HTTP/1.1\r\nHost: g\r\nX: ")

        async def more() -> None:
            while not client.writer.is_closing():
                await client.send(b"y" * 1000)
                await asyncio.sleep(0)

        sending = asyncio.ensure_future(more())
        assert (await client.answer()).status == 431
        sending.cancel()


async def test_body_at_the_limit_passes() -> None:
    async with RawWorker(GOOD) as worker, gateway(worker, body_bytes=1000) as running:
        assert (await running.ask(post(b"x" * 1000))).status == 200


async def test_refusal_reaches_a_client_that_is_still_sending() -> None:
    """Closing at once would answer the rest with a reset, which can overtake the answer."""
    async with gateway(body_bytes=1000) as running, running.client() as client:
        await client.send(LINE + b"Host: g\r\nContent-Length: 10000000\r\n\r\n")
        sending = asyncio.ensure_future(client.send(b"x" * 10_000_000))
        assert (await client.answer()).status == 413
        assert await client.closed() == b""
        await sending


async def test_bodies_of_all_requests_together_are_bounded() -> None:
    release = asyncio.Event()

    async def script(side: WorkerSide) -> None:
        await release.wait()
        await side.send(json_answer())

    async with (
        RawWorker(script) as worker,
        gateway(worker, collected_bytes=1000) as running,
        running.client() as one,
    ):
        await one.send(post(b"x" * 600))
        await eventually(lambda: worker.requests)
        answer = await running.ask(post(b"x" * 600))
        assert answer.status == 503
        assert answer.value("retry-after")
        release.set()
        assert (await one.answer()).status == 200


async def test_connections_beyond_the_limit_are_told() -> None:
    async with gateway(max_connections=1) as running, running.client() as client:
        await client.send(get("/health"))
        assert (await client.answer()).status == 200
        for request in (get("/v1/models"), post(b"x" * 100), post(b"x" * 100_000), get("/nothing")):
            async with running.client() as second:
                await second.send(request)
                answer = await second.answer()
                assert answer.status == 503
                assert answer.value("retry-after")
                assert await second.closed() == b""
        await client.send(get("/health"))
        assert (await client.answer()).status == 200


async def test_a_gateway_that_is_full_still_says_that_it_lives() -> None:
    async with gateway(max_connections=1) as running, running.client():
        await eventually(lambda: running.server.num_connections == 1)
        async with running.client() as probe:
            await probe.send(get("/livez") * 2)
            assert (await probe.answer()).status == 200
            assert await probe.closed() == b""


async def test_far_beyond_the_limit_nothing_is_read() -> None:
    async with gateway(max_connections=1) as running, AsyncExitStack() as stack:
        for _ in range(1 + SURPLUS_CONNECTIONS_MAX):
            await stack.enter_async_context(running.client())
        await eventually(lambda: running.server.num_connections == 1 + SURPLUS_CONNECTIONS_MAX)
        async with running.client() as last:
            answer = await last.answer()
            assert answer.status == 503
            assert await last.closed() == b""


# Slowness


@pytest.mark.parametrize(
    "part", [b"G", LINE, LINE + b"Host: g\r\nX", LINE + b"Host: g\r\nContent-Length: 2\r\n\r\n{"]
)
async def test_request_that_does_not_arrive_in_time(part: bytes) -> None:
    limits = {"head_seconds": 0.05, "body_silence_seconds": 0.05, "linger_seconds": 0.05}
    async with gateway(**limits) as running, running.client() as client:
        await client.send(part)
        received = await client.closed()
        assert received.startswith(b"HTTP/1.1 408 ") or part == b"G"
        await running.at_rest()


@pytest.mark.parametrize("part", [LINE + b"Host: g\r\nX", LINE + b"Host: g\r\nContent-Length: 2\r\n\r\n{"])
async def test_part_of_a_request_behind_one_that_was_refused_has_its_own_deadline(part: bytes) -> None:
    """It came in the same bytes; only the time of an idle connection ran for it before."""
    limits = {"head_seconds": 0.05, "body_silence_seconds": 0.05, "linger_seconds": 0.05}
    async with gateway(**limits) as running, running.client() as client:
        await client.send(get("/nothing") + part)
        assert (await client.answer()).status == 404
        assert (await client.answer()).status == 408


async def test_body_has_its_own_time_from_the_head_on() -> None:
    async with RawWorker(GOOD) as worker, gateway(worker) as running, running.client() as client:
        await client.send(LINE + b"Host: g\r\nContent-Length: 2\r\n\r\n{")
        await eventually(lambda: running.server.collected_bytes)
        (connection,) = running.server._connections
        connection.check(CLOCK() + 2 * running.server.limits.head_seconds)
        await client.send(b"}")
        assert (await client.answer()).status == 200


async def test_head_that_trickles_is_cut_all_the_same() -> None:
    async with gateway() as running, running.client() as client:
        await client.send(LINE)
        (connection,) = await eventually(lambda: list(running.server._connections))
        await eventually(lambda: connection._reader.is_in_head)
        begun_at = CLOCK()
        await client.send(b"X: y\r\n")
        await eventually(lambda: connection._reader._fed_bytes)
        connection.check(begun_at + running.server.limits.head_seconds)
        assert (await client.answer()).status == 408


async def test_idle_connection_is_closed_in_silence() -> None:
    async with gateway(keep_alive_seconds=0.05) as running, running.client() as client:
        await client.send(get("/health"))
        assert (await client.answer()).status == 200
        assert await client.closed() == b""


# Paths, methods, keys


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (get("/nothing"), 404, "unknown_path"),
        (post(path="/sleep"), 404, "unknown_path"),
        (post(path="/v1/load_lora_adapter"), 404, "unknown_path"),
        (get("/v1/completions"), 405, "method_not_allowed"),
        (get("/v1/chat/completions", method="OPTIONS"), 405, "method_not_allowed"),
    ],
)
async def test_what_is_not_served(data: bytes, status: int, code: str) -> None:
    async with RawWorker(GOOD) as worker, gateway(worker) as running, running.client() as client:
        for _ in range(2):  # a small refused request does not cost the connection
            await client.send(data)
            answer = await client.answer()
            assert answer.status == status
            assert orjson.loads(answer.body)["error"]["code"] == code
        assert worker.requests == []


KEYS = Settings(policy="round_robin", api_key=("sesame", "other"), worker_api_key="inner")


@pytest.mark.parametrize(
    "extra", ["Authorization: Bearer sesame\r\n", "authorization: bearer other\r\n", "X-Api-Key: other\r\n"]
)
async def test_key_opens_and_stays_here(extra: str) -> None:
    async with RawWorker(GOOD) as worker, gateway(worker, settings=KEYS) as running:
        assert (await running.ask(post(extra=extra))).status == 200
        (request,) = worker.requests
        assert request.values("authorization") == [b"Bearer inner"]
        assert request.values("x-api-key") == []
        assert b"sesame" not in request.head
        assert b"other" not in request.head


@pytest.mark.parametrize(
    "extra", ["", "Authorization: Bearer wrong\r\n", "Authorization: Basic sesame\r\n", "X-Api-Key: \r\n"]
)
async def test_without_a_key_nothing_is_served_but_health(extra: str) -> None:
    async with RawWorker(GOOD) as worker, gateway(worker, settings=KEYS) as running:
        for path in ("/v1/completions", "/nothing", "/v1/models"):
            answer = await running.ask(post(extra=extra, path=path))
            assert answer.status == 401
            assert orjson.loads(answer.body)["error"]["type"] == "authentication_error"
        assert (await running.ask(get("/health", extra=extra))).status == 200
        assert worker.requests == []


async def test_without_keys_the_clients_credentials_pass_through() -> None:
    async with RawWorker(GOOD) as worker, gateway(worker) as running:
        await running.ask(post(extra="Authorization: Bearer theirs\r\nX-Api-Key: also\r\n"))
        assert worker.requests[0].values("authorization") == [b"Bearer theirs"]
        assert worker.requests[0].values("x-api-key") == [b"also"]
