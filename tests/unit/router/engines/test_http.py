"""Calls to a worker's API end in time, within their bytes, and survive a connection that was just closed."""

import asyncio

import pytest

from router.engines.http import Answer, CallFailed, WorkerHttp
from router.engines.sessions import WorkerSessions
from tests.support.certificates import system_trust
from tests.support.fake_worker import FakeWorker


@pytest.fixture
async def sessions():
    async with WorkerSessions(system_trust()) as sessions:
        yield sessions


class RawServer:
    """Answers the first request of each connection, and drops the connection on the second."""

    def __init__(self):
        self.num_requests = 0

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *exc):
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        if b"POST" in head:
            await reader.readexactly(2)
        self.num_requests += 1
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        if await reader.read(1):
            self.num_requests += 1
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_kept_connection_that_was_just_closed_is_not_a_failure(method, sessions):
    async with RawServer() as server:
        http = WorkerHttp(sessions, server.url)
        for _ in range(3):
            call = http.get("/x", 100) if method == "GET" else http.post_json("/x", b"{}", 100)
            assert await call == Answer(200, b"ok")
        await sessions.close()
    assert server.num_requests == 5


async def test_an_answer_may_be_as_long_as_allowed_and_no_longer(sessions):
    async with FakeWorker({"GET /x": (200, b"x" * 100_000)}) as worker:
        http = WorkerHttp(sessions, worker.url + "/")
        assert len((await http.get("/x", 100_000)).body) == 100_000
        with pytest.raises(CallFailed, match="/x answered more than 99999 bytes"):
            await http.get("/x", 99_999)


async def test_redirects_are_not_followed(sessions):
    async with FakeWorker({"GET /x": (302, b"")}) as worker:
        answer = await WorkerHttp(sessions, worker.url).get("/x", 100)
        assert (answer.status, answer.is_success) == (302, False)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://nonsense", "unix:/nowhere.sock"])
async def test_addresses_that_do_not_work_fail_in_words(url, sessions):
    with pytest.raises(CallFailed, match=r"^(/x failed|cannot connect): \S"):
        await WorkerHttp(sessions, url).get("/x", 100)
