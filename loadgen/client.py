"""Open-loop load over sockets: each request leaves at its time, whatever became of the others.

One connection a request, an asyncio protocol on httptools; a read costs a few microseconds, so that the
client does not take from the machine what it wants to measure. Only streams are sent. Times are read from
`perf_counter`: uvloop's own clock counts whole milliseconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import cast
from urllib.parse import urlsplit

import httptools
import msgspec

from loadgen.results import RequestResult
from loadgen.traces import TraceRequest, prompt_text
from router.tasks import start_task

TOKEN_MARK = b'"finish_reason":'
"""Once in every token's event of chat and completions."""
TAIL_BYTES = 2048
"""Kept of a stream's end: usage stands in the last event before [DONE]."""
REQUEST_SECONDS_MAX = 600.0
"""A request that takes longer counts as an error; nothing waits for ever."""
WORKER_HEADER = b"x-kvgate-worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """What is sent, and when (seconds from the start)."""

    id: str
    send_at: float
    path: str
    body: bytes


def chat_requests(
    requests: Sequence[TraceRequest], rate_scale: float, *, prefix: str, model: str
) -> list[LoadRequest]:
    """Each request as one user message with the trace's words; arrival times are divided by `rate_scale`."""
    return [
        LoadRequest(
            id=f"{prefix}-{i}",
            send_at=request.arrival_seconds / rate_scale,
            path="/v1/chat/completions",
            body=msgspec.json.encode(_chat_body(request, model)),
        )
        for i, request in enumerate(requests)
    ]


def _chat_body(request: TraceRequest, model: str) -> dict[str, object]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": prompt_text(request)}],
        "max_tokens": request.output_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


OnResult = Callable[[RequestResult], None]


async def run_load(
    url: str, requests: Sequence[LoadRequest], on_result: OnResult = lambda _result: None
) -> list[RequestResult]:
    """Sends all requests to `url` (http://host:port) at their times; results in the order of the requests."""
    start = perf_counter()
    tasks = []
    for request in requests:
        await asyncio.sleep(max(0.0, start + request.send_at - perf_counter()))
        late = max(0.0, perf_counter() - start - request.send_at)  # timers may be a millisecond early
        tasks.append(start_task(_run_one(url, request, late, on_result), f"load-{request.id}"))
    return list(await asyncio.gather(*tasks))


async def _run_one(url: str, request: LoadRequest, late: float, on_result: OnResult) -> RequestResult:
    result = RequestResult(id=request.id, late=late)
    address = urlsplit(url)
    loop = asyncio.get_running_loop()
    exchange = _Exchange(result, _head(address.netloc, request) + request.body, loop)
    started = perf_counter()
    try:
        async with asyncio.timeout(REQUEST_SECONDS_MAX):
            await loop.create_connection(lambda: exchange, address.hostname or "", address.port or 80)
            await exchange.ended
    except TimeoutError:
        result.error = f"no end within {REQUEST_SECONDS_MAX:g} s"
    except OSError as error:
        result.error = str(error)
    finally:
        exchange.close()
    result.duration = perf_counter() - started
    on_result(result)
    return result


def _head(authority: str, request: LoadRequest) -> bytes:
    return (
        f"POST {request.path} HTTP/1.1\r\nHost: {authority}\r\nContent-Type: application/json\r\n"
        f"X-Request-Id: {request.id}\r\nConnection: close\r\nContent-Length: {len(request.body)}\r\n\r\n"
    ).encode()


class _Exchange(asyncio.Protocol):
    """One request and its streamed answer on one connection; fills the result in."""

    def __init__(self, result: RequestResult, message: bytes, loop: asyncio.AbstractEventLoop) -> None:
        self.ended: asyncio.Future[None] = loop.create_future()
        self._result = result
        self._message = message
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._sent_at = self._last_token_at = 0.0
        self._num_tokens_read = 0
        self._tail = b""

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are of no asyncio class
        self._transport = cast(asyncio.Transport, transport)
        self._sent_at = perf_counter()
        self._transport.write(self._message)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(f"unreadable answer: {error}")
            return
        if self._num_tokens_read:
            self._count_tokens(self._num_tokens_read)
            self._num_tokens_read = 0

    def connection_lost(self, error: Exception | None) -> None:
        self._end(str(error) if error else "connection closed before the end")

    # httptools' callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == WORKER_HEADER:
            self._result.worker = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._num_tokens_read += body.count(TOKEN_MARK)
        self._tail = (self._tail + body)[-TAIL_BYTES:]

    def on_message_complete(self) -> None:
        self._result.status = self._parser.get_status_code()
        self._end(_read_end(self._result, self._tail))

    def _count_tokens(self, count: int) -> None:
        now = perf_counter()
        if self._result.ttft is None:
            self._result.ttft = now - self._sent_at
        else:
            self._result.token_gaps += [(now - self._last_token_at) / count] * count
        self._last_token_at = now

    def _end(self, error: str | None) -> None:
        if not self.ended.done():
            self._result.error = error
            self.ended.set_result(None)


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _LastEvent(msgspec.Struct):
    usage: _Usage | None = None


def _read_end(result: RequestResult, tail: bytes) -> str | None:
    """Takes the usage, if any, out of a stream's end; returns what is wrong with the answer, or None."""
    if result.status != 200:
        return f"status {result.status}: {tail[:200].decode('utf-8', 'replace')}"
    events = tail.rstrip().split(b"data: ")
    if events[-1] != b"[DONE]" or len(events) < 2:
        return f"the stream did not end with [DONE]: {tail[-200:].decode('utf-8', 'replace')}"
    try:
        usage = msgspec.json.decode(events[-2], type=_LastEvent).usage
    except msgspec.DecodeError as error:
        return f"unreadable last event: {error}"
    if usage is not None:
        result.prompt_tokens = usage.prompt_tokens
        result.completion_tokens = usage.completion_tokens
        if usage.prompt_tokens_details is not None:
            result.cached_tokens = usage.prompt_tokens_details.cached_tokens
    return None
