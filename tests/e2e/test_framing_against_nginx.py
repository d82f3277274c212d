"""What is one request, and where does it end? The gateway and nginx must agree, or be listed here.

Where two proxies in a row see different requests in the same bytes, one client can slip a request in under
another's name. So each case is sent to both, followed by one plain request that must be seen as such.
Compared is what was served, and which requests reached a worker behind each.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.nginx import needs_nginx, nginx
from tests.support.raw_worker import RawWorker, answering, json_answer
from tests.support.relay import gateway

pytestmark = needs_nginx

LAST = b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 4\r\n\r\nlast"


def post(*lines: bytes, body: bytes = b"hello", version: bytes = b"1.1", host: bytes = b"Host: h") -> bytes:
    head = [b"POST /v1/completions HTTP/" + version, *([host] if host else []), *lines]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


CHUNKED = b"Transfer-Encoding: chunked"
CHUNKS = b"5\r\nhello\r\n0\r\n\r\n"
LENGTH = b"Content-Length: 5"

CASES: dict[str, bytes] = {
    "length": post(LENGTH),
    "chunked": post(CHUNKED, body=CHUNKS),
    "chunked, other case": post(b"transfer-ENCODING: Chunked", body=CHUNKS),
    "chunk extension": post(CHUNKED, body=b"5;a=b\r\nhello\r\n0\r\n\r\n"),
    "chunk size with zeros": post(CHUNKED, body=b"0005\r\nhello\r\n000\r\n\r\n"),
    "trailer": post(CHUNKED, body=b"5\r\nhello\r\n0\r\nX-A: b\r\n\r\n"),
    "trailer with a length": post(CHUNKED, body=b"5\r\nhello\r\n0\r\nContent-Length: 9\r\n\r\n"),
    "no body": post(b"Content-Length: 0", body=b""),
    "neither length nor chunks": post(body=b""),
    "length with zeros": post(b"Content-Length: 0005"),
    "length with spaces": post(b"Content-Length:   5  "),
    "length with a plus": post(b"Content-Length: +5"),
    "length below zero": post(b"Content-Length: -5"),
    "length in hex": post(b"Content-Length: 0x5"),
    "length that is empty": post(b"Content-Length:"),
    "length in a list": post(b"Content-Length: 5, 5"),
    "length beyond 64 bits": post(b"Content-Length: 18446744073709551621"),
    "equal lengths": post(LENGTH, LENGTH),
    "different lengths": post(LENGTH, b"Content-Length: 6"),
    "length and chunks": post(LENGTH, CHUNKED, body=CHUNKS),
    "chunks and length": post(CHUNKED, LENGTH, body=CHUNKS),
    "coding identity": post(b"Transfer-Encoding: identity", LENGTH),
    "coding gzip": post(b"Transfer-Encoding: gzip", body=CHUNKS),
    "coding gzip, chunked": post(b"Transfer-Encoding: gzip, chunked", body=CHUNKS),
    "coding chunked, gzip": post(b"Transfer-Encoding: chunked, gzip", body=CHUNKS),
    "coding chunked twice": post(CHUNKED, CHUNKED, body=CHUNKS),
    "coding in two lines": post(b"Transfer-Encoding: gzip", CHUNKED, body=CHUNKS),
    "coding that is unknown": post(b"Transfer-Encoding: xchunked", body=CHUNKS),
    "coding after a tab": post(b"Transfer-Encoding:\tchunked", body=CHUNKS),
    "coding after a vertical tab": post(b"Transfer-Encoding: \x0bchunked", body=CHUNKS),
    "coding in quotes": post(b'Transfer-Encoding: "chunked"', body=CHUNKS),
    "chunks in HTTP/1.0": post(CHUNKED, b"Connection: keep-alive", body=CHUNKS, version=b"1.0"),
    "length in HTTP/1.0": post(LENGTH, b"Connection: keep-alive", version=b"1.0"),
    "space before the colon": post(b"Content-Length : 5"),
    "coding before a space and the colon": post(b"Transfer-Encoding : chunked", body=CHUNKS),
    "folded length": post(b"Content-Length:", b" 5"),
    "folded coding": post(b"Transfer-Encoding:", b" chunked", body=CHUNKS),
    "line without a colon": post(b"nonsense", LENGTH),
    "name with a space": post(b"X Y: z", LENGTH),
    "name that is empty": post(b": z", LENGTH),
    "NUL in a value": post(b"X-A: a\0b", LENGTH),
    "CR in a value": post(b"X-A: a\rContent-Length: 6", LENGTH),
    "lines that end in LF": post(LENGTH).replace(b"\r\n", b"\n"),
    "one line that ends in LF": post(b"X-A: b\nContent-Length: 5"),
    "no host": post(LENGTH, host=b""),
    "no host in HTTP/1.0": post(LENGTH, b"Connection: keep-alive", host=b"", version=b"1.0"),
    "two hosts": post(b"Host: other", LENGTH),
    "host that is empty": post(LENGTH, host=b"Host:"),
    "host with a slash": post(LENGTH, host=b"Host: h/x"),
    "host with a space": post(LENGTH, host=b"Host: h x"),
    "chunk size that is none": post(CHUNKED, body=b"z\r\nhello\r\n0\r\n\r\n"),
    "chunk size with 0x": post(CHUNKED, body=b"0x5\r\nhello\r\n0\r\n\r\n"),
    "chunk size below zero": post(CHUNKED, body=b"-5\r\nhello\r\n0\r\n\r\n"),
    "chunk size with a space": post(CHUNKED, body=b"5 \r\nhello\r\n0\r\n\r\n"),
    "chunk size after a space": post(CHUNKED, body=b" 5\r\nhello\r\n0\r\n\r\n"),
    "chunk size beyond 64 bits": post(CHUNKED, body=b"10000000000000005\r\nhello\r\n0\r\n\r\n"),
    "chunk size that is empty": post(CHUNKED, body=b"\r\nhello\r\n0\r\n\r\n"),
    "chunk longer than its size": post(CHUNKED, body=b"3\r\nhello\r\n0\r\n\r\n"),
    "chunk that ends in LF": post(CHUNKED, body=b"5\r\nhello\n0\r\n\r\n"),
    "chunk size that ends in LF": post(CHUNKED, body=b"5\nhello\r\n0\r\n\r\n"),
    "chunk size that ends in CR": post(CHUNKED, body=b"5\rhello\r\n0\r\n\r\n"),
    "LF in a chunk extension": post(CHUNKED, body=b"5;a\nhello\r\n0\r\n\r\n"),
    "blank line before": b"\r\n" + post(LENGTH),
    "blank lines between": post(LENGTH) + b"\r\n\r\n",
    "bytes between": post(LENGTH) + b"xx",
    "version 1.2": post(LENGTH, version=b"1.2"),
    "version 2.0": post(LENGTH, version=b"2.0"),
    "version without a dot": post(LENGTH, version=b"11"),
    "version that is missing": b"POST /v1/completions\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello",
    "method in small letters": post(LENGTH).replace(b"POST", b"post"),
    "two spaces in the first line": post(LENGTH).replace(b"POST ", b"POST  "),
    "tab in the first line": post(LENGTH).replace(b"POST ", b"POST\t"),
    "space in the target": post(LENGTH).replace(b"completions", b"completions?a b"),
    "NUL in the target": post(LENGTH).replace(b"completions", b"completions?\0"),
    "absolute target": post(LENGTH).replace(b"/v1", b"http://h/v1"),
    "fragment in the target": post(LENGTH).replace(b"completions", b"completions#x"),
}

STRICTER = {
    "trailer with a length": "trailers have no say in framing, and llhttp refuses those that pretend to",
    "line without a colon": "a line that is no header may hide one from whoever reads it otherwise",
    "lines that end in LF": "two readers that differ on line ends differ on where a head ends",
    "one line that ends in LF": "the same",
    "chunk that ends in LF": "the same for chunks",
    "chunk size that ends in LF": "the same for chunks",
    "LF in a chunk extension": "the same for chunks",
    "chunk size with a space": "no space belongs there",
    "version 1.2": "there is none",
    "fragment in the target": "it is not cut off, and no path has one",
}
"""Served by nginx 1.22, not by the gateway, and why not."""

MORE_LENIENT = {
    "coding after a tab": "a tab is white space as good as any (RFC 9110, 5.6.3)",
    "host that is empty": "no decision depends on it, and workers are sent their own",
    "host with a slash": "the same",
    "host with a space": "the same",
}
"""Refused by nginx 1.22, served by the gateway, and why that harms nobody."""


@dataclass(frozen=True)
class Seen:
    """`bodies`: of the requests that reached the worker."""

    num_served: int
    bodies: tuple[bytes, ...]


BOTH_REQUESTS = Seen(2, (b"hello", b"last"))


@pytest.mark.parametrize("name", CASES)
async def test_both_see_the_same_requests(name: str, tmp_path: Path) -> None:
    script = answering(json_answer())
    async with (
        RawWorker(script) as behind_nginx,
        RawWorker(script) as behind_gateway,
        nginx(behind_nginx.url, tmp_path) as nginx_port,
        gateway(behind_gateway) as running,
    ):
        by_nginx = await send(nginx_port, behind_nginx, CASES[name])
        by_gateway = await send(running.server.port, behind_gateway, CASES[name])
    if name in STRICTER:
        assert b"hello" not in by_gateway.bodies
    elif name in MORE_LENIENT:
        assert by_gateway == BOTH_REQUESTS
    else:
        assert by_gateway == by_nginx


async def send(port: int, worker: RawWorker, data: bytes) -> Seen:
    """The case, then the plain request that ends the connection; what came of them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data + LAST)
    async with asyncio.timeout(10):
        answers = await reader.read()
    writer.transport.abort()
    return Seen(answers.count(b"HTTP/1.1 200 "), tuple(request.body for request in worker.requests))


def test_what_is_listed_is_a_case() -> None:
    assert set(STRICTER) | set(MORE_LENIENT) <= set(CASES)
    assert not set(STRICTER) & set(MORE_LENIENT)
