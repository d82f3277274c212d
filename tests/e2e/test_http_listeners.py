"""The admin port and the index server before clients that speak HTTP badly, slowly or packed."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import logging
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import orjson
import pytest

from indexer import http_listener
from tests.support.index_client import running_index
from tests.support.relay import RawClient
from tests.support.serving import serving


@contextlib.asynccontextmanager
async def admin_port() -> AsyncIterator[str]:
    async with serving([]) as client:
        yield client.admin_url("")


@contextlib.asynccontextmanager
async def index_server() -> AsyncIterator[str]:
    async with running_index() as client:
        yield client.url


@pytest.fixture(params=[(admin_port, b"PUT /policy"), (index_server, b"POST /query")], ids=["admin", "index"])
async def place(request: pytest.FixtureRequest) -> AsyncIterator[tuple[str, bytes]]:
    """The URL of a server, and a request that has a body there."""
    server, line = request.param
    async with server() as url:
        yield url, line


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[RawClient]:
    parts = urlsplit(url)
    client = RawClient(*await asyncio.open_connection(parts.hostname, parts.port))
    try:
        yield client
    finally:
        client.leave()


async def refusal(url: str, sent: bytes) -> tuple[int, str]:
    """Status and message of the answer, which has the shape of OpenAI's errors."""
    async with connected(url) as client:
        await client.send(sent)
        answer = await client.answer()
        assert (answer.value("content-type") or "").startswith("application/json")
        return answer.status, orjson.loads(answer.body)["error"]["message"]


@pytest.mark.parametrize(
    "head",
    [
        b"rubbish<script>\r\n\r\n",
        b"GET / HTTP/1.1\r\nno<script>colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: <script>\r\n\r\n",
        b"GET / HTTP/9.9<script>\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost:<script>\r\n\r\n",
    ],
)
async def test_malformed_http_is_refused_in_json_without_an_echo_or_a_traceback(
    place: tuple[str, bytes], head: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    status, message = await refusal(place[0], head)
    assert (status, "script" in message) == (400, False)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("body", [b"rubbish", gzip.compress(bytes(10_000_000))])
async def test_packed_bodies_are_refused_unopened(
    place: tuple[str, bytes], body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    url, line = place
    head = line + b" HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
    status, message = await refusal(url, head % len(body) + body)
    assert (status, "Content-Encoding" in message) == (415, True)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_body_in_broken_chunks_is_refused(
    place: tuple[str, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    url, line = place
    async with connected(url) as client:
        await client.send(
            line + b" HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"
        )
        await client.send(b"zz\r\n")
        assert (await client.answer()).status == 400
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_body_that_does_not_come_is_not_waited_for_for_ever(
    place: tuple[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_listener, "SERVICE_BODY_SECONDS", 0.05)
    url, line = place
    status, message = await refusal(url, line + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
    assert (status, message) == (408, "The body did not come within 0.05 seconds")


@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nHost:"])
async def test_a_connection_without_a_whole_head_is_closed(sent: bytes) -> None:
    async with running_index(head_seconds=0.05) as index, connected(index.url) as client:
        await client.send(sent)
        assert await client.closed() == b""


async def test_a_connection_that_has_had_a_request_outlives_the_time_for_its_head() -> None:
    async with running_index(head_seconds=0.2) as index, connected(index.url) as client:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + 0.5
        while loop.time() < ends_at:
            await client.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await client.answer()).status == 200
