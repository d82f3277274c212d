"""The same bytes through nginx and through the gateway: what a worker behind each saw, what a client got."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tests.fuzz.reference import Answer, Doubt, read_answer, read_head
from tests.support.raw_worker import Recorded, Script, answering, json_answer

OWN_REQUEST_HEADERS = {b"host", b"connection", b"x-request-id", b"x-kvgate-via"}
"""Each proxy says these in its own way to workers."""
OWN_ANSWER_HEADERS = {
    b"date",
    b"server",
    b"connection",
    b"transfer-encoding",
    b"x-request-id",
    b"x-kvgate-worker",
}

Headers = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True)
class SeenRequest:
    """At the worker."""

    line: bytes
    headers: Headers
    body: bytes


@dataclass(frozen=True)
class SeenAnswer:
    """At the client; of an error that a proxy made itself only the status."""

    status: int
    headers: Headers = ()
    body: bytes = b""


@dataclass(frozen=True)
class Seen:
    requests: tuple[SeenRequest, ...]
    answers: tuple[SeenAnswer, ...]
    rest: bytes
    """What came behind the answers and is none; of an answer that broke off, its body."""
    ended: str
    """closed, reset or open."""

    @property
    def statuses(self) -> tuple[int, ...]:
        return tuple(answer.status for answer in self.answers)

    def __str__(self) -> str:
        requests = ", ".join(request.line.decode("latin-1")[:60] for request in self.requests)
        rest = f" + {self.rest[:60]!r}" if self.rest else ""
        return f"worker saw [{requests}], client got {list(self.statuses)}{rest}, {self.ended}"


Client = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Exchange:
    """One case. `client` sends; afterwards everything is read until the proxy closes, unless it `leaves`."""

    client: Client
    script: Script = field(default_factory=lambda: answering(json_answer()))
    methods: tuple[bytes, ...] = (b"POST", b"POST", b"POST")
    """Of the requests, in order: the meaning of an answer hangs on it."""


def sending(*pieces: bytes) -> Client:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            with contextlib.suppress(ConnectionError):
                await writer.drain()

    return client


async def observe(port: int, exchange: Exchange) -> tuple[bytes, str]:
    """All that came back, and how the connection ended."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 26)
    received, ended = bytearray(), "closed"
    try:
        async with asyncio.timeout(10):
            await exchange.client(reader, writer)
            while data := await reader.read(1 << 16):
                received += data
    except ConnectionError:
        ended = "reset"
    except TimeoutError:
        ended = "open"
    finally:
        writer.transport.abort()
    return bytes(received), ended


def as_seen(received: bytes, ended: str, requests: list[Recorded], methods: tuple[bytes, ...]) -> Seen:
    """Headers without their order and without those that each proxy says in its own way."""
    answers: list[SeenAnswer] = []
    at = num_final = 0
    while at < len(received):
        try:
            if received.startswith(b"HTTP/1.1 1", at):
                head = read_head(received, at)
                answers.append(SeenAnswer(int(head.first_line.split(b" ")[1])))
                at = head.end
            else:
                answer, at = read_answer(received, at, methods[min(num_final, len(methods) - 1)])
                answers.append(_answer(answer))
                num_final += 1
        except Doubt:
            break
    rest = received[at:].partition(b"\r\n\r\n")[2] or received[at:]
    return Seen(tuple(map(_request, requests)), tuple(answers), rest, ended)


def _answer(answer: Answer) -> SeenAnswer:
    if b"<center>nginx" in answer.body or b'"param":' in answer.body:
        return SeenAnswer(answer.status)
    kept = tuple(sorted(header for header in answer.headers if header[0] not in OWN_ANSWER_HEADERS))
    return SeenAnswer(answer.status, kept, answer.body)


def _request(recorded: Recorded) -> SeenRequest:
    head = read_head(recorded.head, 0)
    kept = tuple(sorted(header for header in head.headers if header[0] not in OWN_REQUEST_HEADERS))
    return SeenRequest(head.first_line, kept, recorded.body)
