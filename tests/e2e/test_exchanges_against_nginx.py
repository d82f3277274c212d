"""Whole exchanges through nginx and the gateway: what the worker saw, what the client got, how it ended.

Where the two differ, the difference stands in `DIFFERENCES` with its reason. Where requests begin and end is
the subject of `test_framing_against_nginx`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.exchanges import Client, Exchange, Seen, as_seen, observe, sending
from tests.support.nginx import needs_nginx, nginx
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
from tests.support.relay import gateway, get, post
from tests.support.waiting import eventually

pytestmark = needs_nginx

NGINX_LIMITS = (
    "client_max_body_size 1000; client_header_timeout 200ms; client_body_timeout 200ms;"
    " keepalive_timeout 200ms; proxy_read_timeout 500ms;"
)
LIMITS = {
    "body_bytes": 1000,
    "head_seconds": 0.2,
    "body_silence_seconds": 0.2,
    "keep_alive_seconds": 0.2,
    "linger_seconds": 0.2,
    "idle_seconds": 1.0,
    "first_byte_seconds": 1.0,
}

PATH = "/v1/completions"
LAST = post(b"last", extra="Connection: close\r\n")
STREAM = STREAM_HEAD + chunk(event("a")) + chunk(event("b")) + END_OF_CHUNKS


def plain(head: bytes, body: bytes = b"") -> bytes:
    return b"HTTP/1.1 " + head.replace(b"\n", b"\r\n") + b"\r\n\r\n" + body


def http10(data: bytes) -> bytes:
    return data.replace(b"HTTP/1.1", b"HTTP/1.0", 1)


def requesting(data: bytes, *, method: bytes = b"POST", answer: bytes | None = None) -> Exchange:
    """The data, then a plain request that ends the connection."""
    script = answering(json_answer() if answer is None else answer)
    return Exchange(sending(data + LAST), first_with(script), (method, b"POST", b"POST"))


def first_with(script: Script) -> Script:
    """The script for all requests but the last, which gets a plain answer."""

    async def chosen(side: WorkerSide) -> None:
        await (answering(json_answer())(side) if side.request.body == b"last" else script(side))

    return chosen


def answered(answer: bytes, *, method: str = "POST", closes: bool = False) -> Exchange:
    """A plain request that the worker answers so."""
    data = post(b"hello") if method == "POST" else get("/version", method=method)

    async def script(side: WorkerSide) -> None:
        await side.send(answer)
        if closes:
            side.close()

    return Exchange(sending(data + LAST), first_with(script), (method.encode(), b"POST"))


REQUESTS = {
    "headers that repeat, in their order": requesting(post(extra="X-A: 1\r\nCookie: a=b\r\nX-A: 2\r\n")),
    "header without a value": requesting(post(extra="X-A:\r\n")),
    "header with an underscore": requesting(post(extra="x_a: 1\r\n")),
    "header in Latin-1": requesting(post().replace(b"Host", b"X-A: \xe9\xff\r\nHost")),
    "hop-by-hop headers": requesting(post(extra="TE: trailers\r\nKeep-Alive: 5\r\nUpgrade: foo\r\n")),
    "proxy headers": requesting(post(extra="Proxy-Authorization: a\r\nProxy-Connection: close\r\n")),
    "header named by Connection": requesting(post(extra="Connection: X-Own\r\nX-Own: 1\r\n")),
    "length named by Connection": requesting(post(b"hello", extra="Connection: content-length\r\n")),
    "trailer that is announced": requesting(post(extra="Trailer: X-A\r\n")),
    "Connection: close": Exchange(sending(post(extra="Connection: close\r\n"))),
    "Connection: close before another request": Exchange(sending(post(extra="Connection: close\r\n") + LAST)),
    "HTTP/1.0": Exchange(sending(http10(post()))),
    "HTTP/1.0 before another request": Exchange(sending(http10(post()) + LAST)),
    "HTTP/1.0 that keeps its connection": requesting(http10(post(extra="Connection: keep-alive\r\n"))),
    "HTTP/1.0 and chunks": Exchange(
        sending(http10(post(extra="Connection: keep-alive\r\n"))), answering(STREAM)
    ),
    "HTTP/1.0 that expects 100": requesting(
        http10(post(extra="Expect: 100-continue\r\nConnection: keep-alive\r\n"))
    ),
    "Expect: 100-continue": requesting(post(extra="Expect: 100-continue\r\n")),
    "Expect: 100-Continue and no body": requesting(get("/version", extra="Expect: 100-Continue\r\n")),
    "Expect that is unknown": requesting(post(extra="Expect: miracles\r\n")),
    "offer of HTTP/2": requesting(post(extra="Connection: Upgrade\r\nUpgrade: h2c\r\n")),
    "offer of something": requesting(post(extra="Connection: upgrade\r\nUpgrade: foo\r\n")),
    "absolute target": requesting(post(path="http://elsewhere/v1/completions?a=b")),
    "absolute target with another host than Host": requesting(post(path="http://elsewhere:8/v1/completions")),
    "query": requesting(post(path=PATH + "?a=b%20c&d&e=%2F#")),
    "query with odd characters": requesting(post(path=PATH + "?a={}|^`\"<>'")),
    "percent in the path": requesting(post(path="/v1/%63ompletions")),
    "dots in the path": requesting(post(path="/v1/./completions")),
    "dots that lead out": requesting(post(path="/../v1/completions")),
    "two slashes": requesting(post(path="//v1/completions")),
    "target that is empty": requesting(post(path="")),
    "asterisk": requesting(get("*", method="OPTIONS"), method=b"OPTIONS"),
    "method PUT": requesting(post().replace(b"POST", b"PUT", 1), method=b"PUT"),
    "method DELETE": requesting(get(PATH, method="DELETE"), method=b"DELETE"),
    "method OPTIONS": requesting(get(PATH, method="OPTIONS"), method=b"OPTIONS"),
    "method TRACE": requesting(get(PATH, method="TRACE"), method=b"TRACE"),
    "method PROPFIND": requesting(get(PATH, method="PROPFIND"), method=b"PROPFIND"),
    "method that nobody knows": requesting(get(PATH, method="BREW"), method=b"BREW"),
    "method CONNECT": requesting(get("h:80", method="CONNECT"), method=b"CONNECT"),
    "GET with a body": requesting(post(b"hello", "/version").replace(b"POST", b"GET", 1), method=b"GET"),
    "HEAD with a body": requesting(
        post(b"hello", "/version").replace(b"POST", b"HEAD", 1),
        method=b"HEAD",
        answer=plain(b"200 OK\ncontent-length: 9"),
    ),
    "pipelining": requesting(post(b"1") + post(b"2") + get("/version")),
    "pipelining behind HEAD": Exchange(
        sending(get("/version", method="HEAD") + post(b"1") + LAST),
        lambda side: side.send(
            plain(b"200 OK\ncontent-length: 11") if side.request.head[:4] == b"HEAD" else json_answer()
        ),
        (b"HEAD", b"POST", b"POST"),
    ),
    "pipelining byte by byte": Exchange(sending(*(bytes([b]) for b in post(b"1") + LAST))),
    "target of 8,000 bytes": requesting(post(path=PATH + "?" + "a" * 7950)),
    "target of 9,000 bytes": requesting(post(path=PATH + "?" + "a" * 9000)),
    "header of 8,000 bytes": requesting(post(extra="X-A: " + "a" * 8000 + "\r\n")),
    "header of 20,000 bytes": requesting(post(extra="X-A: " + "a" * 20_000 + "\r\n")),
    "headers of 100,000 bytes": requesting(post(extra=("X-A: " + "a" * 5000 + "\r\n") * 20)),
    "body at the limit": requesting(post(b"x" * 1000)),
    "length beyond the limit": requesting(post(b"x" * 1001)),
    "chunks beyond the limit": requesting(
        post(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
        + chunk(b"x" * 1001)
        + END_OF_CHUNKS
    ),
    "head that stops": Exchange(sending(b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nX")),
    "head of a second request that stops": Exchange(
        sending(post() + b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nX")
    ),
    "body that stops": Exchange(sending(post(b"hello")[:-1])),
    "chunks that stop": Exchange(
        sending(post(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked") + b"5\r\nhel")
    ),
    "nothing sent": Exchange(sending()),
    "idle connection": Exchange(sending(post())),
}

ANSWERS = {
    "length": answered(json_answer()),
    "length 0": answered(plain(b"200 OK\ncontent-length: 0")),
    "chunks": answered(STREAM),
    "chunks with an extension": answered(STREAM_HEAD + b"2;a=b\r\n: \r\n0;c\r\n\r\n"),
    "chunks without any": answered(STREAM_HEAD + END_OF_CHUNKS),
    "trailer": answered(STREAM_HEAD + chunk(event("a")) + b"0\r\nX-A: 1\r\n\r\n"),
    "end of the connection": answered(plain(b"200 OK\ncontent-type: text/plain", b"text"), closes=True),
    "end of the connection, without a body": answered(plain(b"200 OK"), closes=True),
    "answer in HTTP/1.0": answered(http10(json_answer()), closes=True),
    "status that is unknown": answered(plain(b"299 Fine\ncontent-length: 2", b"ok")),
    "error of the worker": answered(plain(b"422 Nope\nretry-after: 1\ncontent-length: 2", b"{}")),
    "redirect": answered(plain(b"307 Go\nlocation: /v1/models\ncontent-length: 0")),
    "reason that is missing": answered(plain(b"200\ncontent-length: 2", b"ok")),
    "204": answered(plain(b"204 No Content")),
    "204 with a length of 0": answered(plain(b"204 No Content\ncontent-length: 0")),
    "304": answered(plain(b'304 Not Modified\netag: "a"')),
    "304 with a length": answered(plain(b"304 Not Modified\ncontent-length: 5")),
    "HEAD with a length": answered(plain(b"200 OK\ncontent-length: 5"), method="HEAD"),
    "HEAD with chunks": answered(plain(b"200 OK\ntransfer-encoding: chunked"), method="HEAD"),
    "HEAD with neither": answered(plain(b"200 OK"), method="HEAD"),
    "HEAD with a body": answered(plain(b"200 OK\ncontent-length: 5", b"hello"), method="HEAD"),
    "100 before the answer": answered(plain(b"100 Continue") + json_answer()),
    "103 before the answer": answered(plain(b"103 Early Hints\nlink: x") + json_answer()),
    "101 that nobody asked for": answered(plain(b"101 Switching\nupgrade: x\nconnection: upgrade")),
    "hop-by-hop headers": answered(json_answer(extra=b"Keep-Alive: timeout=5\r\nUpgrade: h2c\r\nX-A: 1\r\n")),
    "header named by Connection": answered(json_answer(extra=b"Connection: X-Own\r\nX-Own: 1\r\n")),
    "length named by Connection": answered(json_answer(extra=b"Connection: content-length\r\n")),
    "cookies": answered(json_answer(extra=b"Set-Cookie: a=1\r\nSet-Cookie: b=2\r\n")),
    "encoding": answered(json_answer(b"\x1f\x8b", extra=b"Content-Encoding: gzip\r\n")),
    "two lengths": answered(plain(b"200 OK\ncontent-length: 2\ncontent-length: 2", b"ok")),
    "different lengths": answered(plain(b"200 OK\ncontent-length: 2\ncontent-length: 3", b"okk")),
    "length and chunks": answered(
        plain(b"200 OK\ncontent-length: 5\ntransfer-encoding: chunked", END_OF_CHUNKS)
    ),
    "length that is none": answered(plain(b"200 OK\ncontent-length: +2", b"ok")),
    "coding twice": answered(
        plain(b"200 OK\ntransfer-encoding: chunked\ntransfer-encoding: chunked", END_OF_CHUNKS)
    ),
    "coding gzip": answered(plain(b"200 OK\ntransfer-encoding: gzip", b"x"), closes=True),
    "folded header": answered(plain(b"200 OK\nx-a: 1\n 2\ncontent-length: 2", b"ok")),
    "space before the colon": answered(plain(b"200 OK\ncontent-length : 2", b"ok")),
    "line without a colon": answered(plain(b"200 OK\nnonsense\ncontent-length: 2", b"ok")),
    "NUL in a header": answered(plain(b"200 OK\nx-a: 1\0\ncontent-length: 2", b"ok")),
    "lines that end in LF": answered(b"HTTP/1.1 200 OK\ncontent-length: 2\n\nok"),
    "no HTTP": answered(b"220 smtp ready\r\n", closes=True),
    "nothing": answered(b"", closes=True),
    "half a head": answered(b"HTTP/1.1 200 OK\r\nconte", closes=True),
    "half a body": answered(json_answer()[:-3], closes=True),
    "half a chunk": answered(STREAM[:-20], closes=True),
    "chunk size that is none": answered(STREAM_HEAD + b"xyz\r\n"),
    "more than the length": answered(json_answer() + b"more"),
    "more than the last chunk": answered(STREAM + b"more"),
    "another answer": answered(json_answer() + plain(b"200 OK\ncontent-length: 5", b"other")),
}


def half_closing(data: bytes, *, after: bytes = b"") -> Client:
    """A client that closes its side behind the data, once it has read `after`."""

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        if after:
            await reader.readuntil(after)
        writer.write_eof()

    return client


async def waits(side: WorkerSide) -> None:
    await side.peer_left()


async def waits_in_the_stream(side: WorkerSide) -> None:
    await side.send(STREAM_HEAD + chunk(event("a")))
    await side.peer_left()


async def waiting_for_leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(post(b"last", extra="Expect: 100-continue\r\nConnection: close\r\n")[:-4])
    await reader.readuntil(b"HTTP/1.1 100 Continue\r\n\r\n")
    writer.write(b"last")


CLIENTS = {
    "closes its side while the worker works": Exchange(half_closing(post()), waits),
    "closes its side in the stream": Exchange(half_closing(post(), after=event("a")), waits_in_the_stream),
    "closes its side in its body": Exchange(half_closing(post(b"hello")[:-1])),
    "closes its side in its head": Exchange(half_closing(post()[:30])),
    "waits for leave to send its body": Exchange(waiting_for_leave),
}

CASES = {
    f"{kind}: {name}": case
    for kind, cases in (("request", REQUESTS), ("answer", ANSWERS), ("client", CLIENTS))
    for name, case in cases.items()
}


@dataclass(frozen=True)
class Difference:
    """What the client of the gateway gets where nginx 1.22 does otherwise, and why."""

    statuses: tuple[int, ...]
    why: str


NOT_SERVED = "paths and methods are a list: what is no inference is not reached through this port"
REFUSED = "what can be read in two ways is no answer; the connection to the worker is not used again"

DIFFERENCES = {
    "request: header with an underscore": Difference((200, 200), "nginx drops it; headers pass unchanged"),
    "request: proxy headers": Difference((200,), "credentials for a proxy end here; to close is always safe"),
    "request: header named by Connection": Difference((200, 200), "it concerns one hop (RFC 9110, 7.6.1)"),
    "request: trailer that is announced": Difference((200, 200), "trailers are not forwarded"),
    "request: percent in the path": Difference((404, 200), NOT_SERVED),
    "request: dots in the path": Difference((404, 200), NOT_SERVED),
    "request: dots that lead out": Difference((404, 200), NOT_SERVED),
    "request: two slashes": Difference((404, 200), NOT_SERVED),
    "request: method PUT": Difference((405, 200), NOT_SERVED),
    "request: method DELETE": Difference((405, 200), NOT_SERVED),
    "request: method OPTIONS": Difference((405, 200), NOT_SERVED),
    "request: method TRACE": Difference((405, 200), "a small refused request does not cost the connection"),
    "request: method PROPFIND": Difference((405, 200), NOT_SERVED),
    "request: method that nobody knows": Difference((400,), "llhttp knows the methods that there are"),
    "request: method CONNECT": Difference((501,), "no tunnels; nginx says 400"),
    "request: header of 20,000 bytes": Difference(
        (200, 200), "tokens of identity providers grow; 64 KiB are taken"
    ),
    "request: headers of 100,000 bytes": Difference((431,), "the status for it; nginx says 400"),
    "request: head that stops": Difference((408,), "nginx closes in silence; a client likes to know"),
    "request: head of a second request that stops": Difference((200, 408), "the same"),
    "request: body that stops": Difference((408,), "the same"),
    "request: chunks that stop": Difference((408,), "the same"),
    "client: closes its side while the worker works": Difference((), "seen before a worker was asked"),
    "answer: 100 before the answer": Difference((200, 200), "nginx takes it for the answer"),
    "answer: 103 before the answer": Difference((200, 200), "nginx takes it for the answer"),
    "answer: 101 that nobody asked for": Difference((502, 200), "nobody is there to speak that protocol"),
    "answer: hop-by-hop headers": Difference((200, 200), "Upgrade concerns one hop; nginx passes it"),
    "answer: header named by Connection": Difference((200, 200), "it concerns one hop"),
    "answer: trailer": Difference((200, 200), "chunks pass as they came, with what is behind them"),
    "answer: two lengths": Difference((502, 200), REFUSED),
    "answer: different lengths": Difference((502, 200), REFUSED),
    "answer: length and chunks": Difference((502, 200), REFUSED),
    "answer: length that is none": Difference((502, 200), REFUSED),
    "answer: coding twice": Difference((502, 200), REFUSED),
    "answer: coding gzip": Difference((502, 200), REFUSED),
    "answer: line without a colon": Difference((502, 200), REFUSED),
    "answer: lines that end in LF": Difference((502, 200), REFUSED),
    "answer: no HTTP": Difference((502, 200), "nginx takes it for HTTP/0.9"),
    "answer: half a chunk": Difference((), "cut by both; nginx frames anew what it has read"),
    "answer: chunk size that is none": Difference((502, 200), "not begun, so it can still be said"),
    "answer: more than the length": Difference((502, 200), REFUSED),
    "answer: more than the last chunk": Difference((502, 200), REFUSED),
    "answer: another answer": Difference((502, 200), REFUSED),
}


@pytest.mark.parametrize("name", CASES)
async def test_both_do_the_same(name: str, tmp_path: Path) -> None:
    by_nginx, by_gateway = await through_both(CASES[name], tmp_path)
    difference = DIFFERENCES.get(name)
    if difference is None:
        assert by_gateway == by_nginx
    else:
        assert (by_gateway.statuses, by_gateway.ended) == (difference.statuses, "closed"), by_nginx


async def through_both(case: Exchange, directory: Path, settings: str = NGINX_LIMITS) -> tuple[Seen, Seen]:
    async with (
        RawWorker(case.script) as behind_nginx,
        RawWorker(case.script) as behind_gateway,
        nginx(behind_nginx.url, directory, settings) as nginx_port,
        gateway(behind_gateway, **LIMITS) as running,
    ):
        got = await asyncio.gather(observe(nginx_port, case), observe(running.port, case))
    return (
        as_seen(*got[0], behind_nginx.requests, case.methods),
        as_seen(*got[1], behind_gateway.requests, case.methods),
    )


def test_what_is_listed_is_a_case() -> None:
    assert set(DIFFERENCES) <= set(CASES)


PASSES_UPGRADES = 'proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection "upgrade";'
HANDSHAKE = get(
    "/v1/realtime?model=m",
    extra="Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: a2V5\r\nSec-WebSocket-Protocol: realtime\r\n"
    "Sec-WebSocket-Extensions: permessage-deflate\r\n",
)
AGREED = plain(
    b"101 Switching Protocols\nupgrade: websocket\nconnection: upgrade\nsec-websocket-accept: YQ=="
)


async def agrees_and_echoes(side: WorkerSide) -> None:
    await side.send(AGREED + b"first")
    while (data := await side.reader.read(1000)) != b"bye":
        await side.send(data)
    side.close()


async def talks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HANDSHAKE)
    head = await reader.readuntil(b"\r\n\r\n")
    assert {line.lower() for line in AGREED.split(b"\r\n")} <= {line.lower() for line in head.split(b"\r\n")}
    await reader.readuntil(b"first")
    for frame in (b"\x81\x00", b"GET / HTTP/1.1\r\n\r\n", bytes(range(256))):
        writer.write(frame)
        assert await reader.readexactly(len(frame)) == frame
    writer.write(b"bye")


@pytest.mark.parametrize(
    "case",
    [
        Exchange(talks, agrees_and_echoes, (b"GET",)),
        Exchange(sending(HANDSHAKE), answering(plain(b"426 Upgrade\ncontent-length: 2", b"no")), (b"GET",)),
    ],
    ids=["agreed", "declined"],
)
async def test_both_pass_a_websocket_on(case: Exchange, tmp_path: Path) -> None:
    by_nginx, by_gateway = await through_both(case, tmp_path, NGINX_LIMITS + PASSES_UPGRADES)
    assert by_gateway.requests[0].line == by_nginx.requests[0].line
    assert set(by_gateway.requests[0].headers) == set(by_nginx.requests[0].headers)
    assert (by_gateway.statuses, by_gateway.rest) == (by_nginx.statuses, by_nginx.rest)


@pytest.mark.parametrize("status", [200, 413])
async def test_answer_that_comes_while_the_body_is_still_on_its_way(status: int, tmp_path: Path) -> None:
    """Both pass it on and end the connection to a worker that reads no more."""
    answer = plain(b"%d Early\ncontent-length: 5" % status, b"early")
    data = post(b"x" * 16_000_000, extra="Connection: close\r\n")
    async with (
        HastyWorker(answer) as behind_nginx,
        HastyWorker(answer) as behind_gateway,
        nginx(
            behind_nginx.url, tmp_path, "client_max_body_size 32m; client_body_buffer_size 32m;"
        ) as nginx_port,
        gateway(behind_gateway.url) as running,
    ):
        for port, worker in ((nginx_port, behind_nginx), (running.port, behind_gateway)):
            received, _ = await observe(port, Exchange(sending(data)))
            seen = as_seen(received, "", [], (b"POST",))
            assert (seen.statuses, seen.answers[0].body) == ((status,), b"early")
            worker.read_on()
            await eventually(lambda worker=worker: worker.is_over, what="the worker is let go")
            assert worker.num_bytes < len(data)


class HastyWorker(asyncio.Protocol):
    """Answers the first bytes that it gets, and reads no more until it is told to."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.num_bytes = 0
        self.is_over = False

    async def __aenter__(self) -> HastyWorker:
        self.server = await asyncio.get_running_loop().create_server(lambda: self, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if not self.num_bytes:
            self.transport.pause_reading()
            self.transport.write(self.answer)
        self.num_bytes += len(data)

    def read_on(self) -> None:
        self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_over = True
