"""A worker's bytes on their way to a client, cut at every offset; without sockets each cut is exact."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from policies.types import Worker
from router.errors import WorkerError, WorkerProtocolError, WorkerTimeout
from router.limits import RelayLimits
from router.relay import Relay
from router.upstream import Upstream
from router.wire.endpoints import Protocol
from router.wire.http1 import read_request_head
from router.worker_connection import WorkerConnection
from tests.support.dialing import plain_dialer
from tests.support.fake_transport import FakeTransport
from tests.support.raw_worker import END_OF_CHUNKS, STREAM_HEAD, chunk, event, json_answer

EVENTS = [event("a"), event("\\n\\ndata: x"), event("b")]
BODY = b"".join(map(chunk, EVENTS)) + END_OF_CHUNKS
TRAILER = BODY[:-2] + b"X-Trailer: y\r\n\r\n"
CRLF_EVENTS = b"".join(chunk(e.replace(b"\n\n", b"\r\n\r\n")) for e in EVENTS) + END_OF_CHUNKS
MANY_IN_ONE_CHUNK = chunk(b"".join(EVENTS)) + END_OF_CHUNKS
EVENT_IN_TWO_CHUNKS = chunk(EVENTS[0][:20]) + chunk(EVENTS[0][20:] + EVENTS[1]) + END_OF_CHUNKS
BODIES = [BODY, TRAILER, CRLF_EVENTS, MANY_IN_ONE_CHUNK, EVENT_IN_TWO_CHUNKS]


@dataclass
class Client:
    """What a relay needs of a client's connection."""

    transport: FakeTransport = field(default_factory=FakeTransport)
    relay: Relay | None = None
    is_paused: bool = False
    answer_begun: bool = False
    close_after: bool = False
    cut_reason: str = ""

    def ends_after_answer(self) -> bool:
        return False

    def abort(self, reason: str) -> None:
        self.cut_reason = reason


@dataclass
class Observer:
    """Notes what it is told."""

    begun_with: bytes | None = None
    num_first_tokens: int = 0
    gaps: list[float] = field(default_factory=list)
    output: list[int] = field(default_factory=list)

    def began(self, beginning: bytes, now: float) -> None:
        self.begun_with = beginning

    def first_token(self, now: float) -> None:
        self.num_first_tokens += 1

    def output_tokens(self, num: int, now: float) -> None:
        self.output.append(num)

    def token_gaps(self) -> Callable[[float], None]:
        return self.gaps.append


class Setup:
    """A relay between a connection on a fake transport and a fake client. `now` is the time."""

    def __init__(self, *, method: bytes = b"POST", version: str = "1.1", wants_body: bool = False) -> None:
        self.now = 0.0
        self.client, self.observer = Client(), Observer()
        limits = RelayLimits()
        self.upstream = Upstream(limits, lambda: self.now, plain_dialer(), lambda worker: None)
        self.connection = WorkerConnection(self.upstream.pool(Worker(id="w", url="http://w:1")).put)
        self.worker = FakeTransport()
        self.connection.connection_made(self.worker)
        self.relay = self.new_relay(method, version, limits, wants_body)
        self.relay.start(self.connection, b"HEAD", b"BODY")

    def new_relay(self, method: bytes, version: str, limits: RelayLimits, wants_body: bool) -> Relay:
        return Relay(
            self.client,
            read_request_head(method, b"/", version, True, [(b"host", b"g")]),
            self.observer,
            extra_lines=b"x-extra: 1\r\n",
            delta_events=False,
            wants_body=wants_body,
            early_headers=False,
            limits=limits,
            deadline=limits.request_seconds,
            clock=lambda: self.now,
        )

    def receive(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.connection.data_received(piece)

    @property
    def answer_body(self) -> bytes:
        return self.client.transport.written.partition(b"\r\n\r\n")[2]


def dechunked(data: bytes) -> bytes:
    """Raises ValueError unless `data` is whole chunks and an end."""
    body = b""
    while True:
        size, found, data = data.partition(b"\r\n")
        length = int(size, 16)
        if not found or data[length : length + 2] != b"\r\n":
            raise ValueError("broken chunk")
        if length == 0:
            assert data == b"\r\n"
            return body
        body, data = body + data[:length], data[length + 2 :]


@pytest.mark.parametrize("body", BODIES)
async def test_split_anywhere_the_same_bytes_arrive(body: bytes) -> None:
    data = STREAM_HEAD + body
    for cut in range(1, len(data)):
        setup = Setup()
        setup.receive(data[:cut], data[cut:])
        await setup.relay.ended()
        assert setup.answer_body == body
        assert setup.observer.num_first_tokens == 1
        assert setup.upstream.num_idle == 1


async def test_byte_by_byte() -> None:
    setup = Setup()
    setup.receive(*(bytes([byte]) for byte in STREAM_HEAD + BODY))
    await setup.relay.ended()
    assert setup.answer_body == BODY
    assert len(setup.observer.gaps) == len(EVENTS) - 1


@pytest.mark.parametrize("body", BODIES)
async def test_broken_anywhere_the_client_sees_an_error_event_or_a_cut(body: bytes) -> None:
    """Never an event spliced into a chunk or into another event, never a part that looks whole."""
    num_placed = 0
    for cut in range(len(STREAM_HEAD) + 1, len(STREAM_HEAD + body)):
        setup = Setup()
        setup.receive((STREAM_HEAD + body)[:cut])
        setup.connection.eof_received()
        with pytest.raises(WorkerError) as failure:
            await setup.relay.ended()
        if not setup.relay.committed:
            assert setup.client.transport.written == b""
            continue
        sent = setup.answer_body
        if setup.relay.cut_short(failure.value, Protocol.CHAT):
            num_placed += 1
            text = dechunked(setup.answer_body)
            *whole, error, done, nothing = text.replace(b"\r\n", b"\n").split(b"\n\n")
            assert [e + b"\n\n" for e in whole] == EVENTS[: len(whole)]
            assert error.startswith(b'data: {"error":')
            assert (done, nothing) == (b"data: [DONE]", b"")
        else:
            assert setup.answer_body == sent
            assert setup.client.transport.state == "closed"
            with pytest.raises(ValueError):
                dechunked(sent)
    assert num_placed


@pytest.mark.parametrize("done", [chunk(b"data: [DONE]\n\n"), chunk(EVENTS[-1] + b"data: [DONE]\r\n\r\n")])
async def test_broken_off_behind_done_the_answer_is_whole(done: bytes) -> None:
    setup = Setup()
    setup.receive(STREAM_HEAD + BODY[: -len(END_OF_CHUNKS)], done)
    setup.connection.eof_received()
    await setup.relay.ended()
    assert setup.answer_body == BODY[: -len(END_OF_CHUNKS)] + done + END_OF_CHUNKS


async def test_broken_off_in_the_end_itself_the_answer_is_cut() -> None:
    setup = Setup()
    setup.receive(STREAM_HEAD + BODY[: -len(END_OF_CHUNKS)], chunk(b"data: [DONE]\n\n"), b"0\r\n")
    setup.connection.eof_received()
    with pytest.raises(WorkerError) as failure:
        await setup.relay.ended()
    assert not setup.relay.cut_short(failure.value, Protocol.CHAT)


@pytest.mark.parametrize("body", [b"hello", chunk(b"hello") + END_OF_CHUNKS])
@pytest.mark.parametrize("is_cut", [True, False])
async def test_body_in_the_answer_to_head_goes_nowhere(body: bytes, is_cut: bool) -> None:
    """The client would take it for the beginning of the next answer."""
    framing = b"content-length: 5" if body == b"hello" else b"transfer-encoding: chunked"
    head = b"HTTP/1.1 200 OK\r\n%b\r\n\r\n" % framing
    setup = Setup(method=b"HEAD")
    setup.receive(*((head, body) if is_cut else (head + body,)))
    await setup.relay.ended()
    assert setup.answer_body == b""
    assert setup.upstream.num_idle == 0


async def test_connection_whose_trailer_ends_it_is_not_used_again() -> None:
    setup = Setup()
    setup.receive(STREAM_HEAD + BODY[:-2] + b"Connection: close\r\n\r\n")
    await setup.relay.ended()
    assert setup.upstream.num_idle == 0


@pytest.mark.parametrize("extra", [b"\r\n", b"x", b"HTTP/1.1 200 OK\r\n\r\n"])
@pytest.mark.parametrize("answer", [STREAM_HEAD + BODY, STREAM_HEAD + TRAILER, json_answer()])
async def test_bytes_beyond_the_end_are_an_error(answer: bytes, extra: bytes) -> None:
    setup = Setup()
    setup.receive(answer + extra)
    with pytest.raises(WorkerProtocolError):
        await setup.relay.ended()
    assert not setup.relay.committed
    assert setup.worker.state == "aborted"


async def test_slow_client_pauses_the_worker_until_it_goes_on() -> None:
    setup = Setup()
    setup.receive(STREAM_HEAD + chunk(EVENTS[0]))
    setup.relay.pause()
    assert setup.worker.is_reading_paused
    setup.now = 130.0  # beyond the idle limit, which rests meanwhile; the client's own limit does not
    setup.relay.check(setup.now)
    assert setup.client.cut_reason == "slow"
    setup.relay.resume()
    assert not setup.worker.is_reading_paused
    setup.relay.check(setup.now + 119)
    assert setup.worker.state == "open"


async def test_pausing_after_the_end_leaves_the_pooled_connection_alone() -> None:
    setup = Setup()
    setup.receive(STREAM_HEAD + BODY)
    setup.relay.pause()
    assert not setup.worker.is_reading_paused
    await setup.relay.ended()


async def test_abort_after_the_end_leaves_the_pooled_connection_alone() -> None:
    setup = Setup()
    setup.receive(json_answer())
    await setup.relay.ended()
    setup.relay.abort()
    assert setup.worker.state == "open"


async def test_json_answers_are_kept_for_their_usage_when_asked() -> None:
    body = b'{"usage":{"prompt_tokens":1}}'
    keeping, not_keeping = Setup(wants_body=True), Setup()
    for setup in (keeping, not_keeping):
        setup.receive(json_answer(body)[:-5], json_answer(body)[-5:])
        await setup.relay.ended()
        assert setup.answer_body == body
    assert keeping.relay.usage_json == body
    assert not_keeping.relay.usage_json == b""


async def test_http10_client_gets_the_pieces() -> None:
    setup = Setup(version="1.0")
    setup.receive(STREAM_HEAD + BODY)
    assert setup.answer_body == b"".join(EVENTS)
    assert setup.client.close_after
    await setup.relay.ended()


async def test_leaving_ends_the_wait() -> None:
    setup = Setup()
    waiting = asyncio.ensure_future(setup.relay.ended())
    await asyncio.sleep(0)
    waiting.cancel()
    setup.relay.abort()
    assert setup.worker.state == "aborted"
    setup.connection.connection_lost(None)
    with pytest.raises(asyncio.CancelledError):
        await waiting


@pytest.mark.parametrize(
    "num_bytes", [*range(1, 20), 0xF, 0x10, 0xFE, 0xFF, 0x100, 0x101, 0xFFF, 0x1000, 5000]
)
async def test_events_that_come_one_by_one(num_bytes: int) -> None:
    """Whatever their size, they pass as they came, are counted, and their framing is checked."""
    events = [b"data:" + b"x" * num_bytes + b"\n\n"] * 3
    setup = Setup()
    setup.receive(STREAM_HEAD, *map(chunk, events), END_OF_CHUNKS)
    await setup.relay.ended()
    assert setup.answer_body == b"".join(map(chunk, events)) + END_OF_CHUNKS
    assert len(setup.observer.gaps) == 2


@pytest.mark.parametrize("size", [b"f8", b"fa", b"0f9", b"+f9", b"F9", b" f9", b"f9;x=y", b"f_9"])
async def test_size_of_a_chunk_is_never_taken_on_trust(size: bytes) -> None:
    """Only what is exactly one chunk may pass unparsed: any other spelling is judged by the parser."""
    body = b"data:" + b"x" * (0xF9 - 7) + b"\n\n"
    setup = Setup()
    setup.receive(
        STREAM_HEAD + chunk(EVENTS[0]), size + b"\r\n" + body + b"\r\n", chunk(EVENTS[1]) + END_OF_CHUNKS
    )
    if size in (b"0f9", b"F9", b"f9;x=y"):
        await setup.relay.ended()
        assert len(setup.observer.gaps) == 2
    else:
        with pytest.raises(WorkerProtocolError):
            await setup.relay.ended()


async def test_usage_and_end_are_seen_in_events_that_come_one_by_one() -> None:
    usage = b'data: {"usage":{"prompt_tokens":3}}\n\n'
    setup = Setup()
    setup.receive(STREAM_HEAD, *map(chunk, [*EVENTS, usage, b"data: [DONE]\n\n"]), END_OF_CHUNKS)
    await setup.relay.ended()
    assert setup.relay.usage_json.strip() == b'{"usage":{"prompt_tokens":3}}'
    assert len(setup.observer.gaps) == len(EVENTS) + 1


async def test_comments_that_come_one_by_one_are_no_tokens() -> None:
    setup = Setup()
    setup.receive(STREAM_HEAD, chunk(EVENTS[0]), chunk(b": still here\n\n"), chunk(EVENTS[1]), END_OF_CHUNKS)
    await setup.relay.ended()
    assert len(setup.observer.gaps) == 1


async def test_comments_are_passed_on_and_are_no_progress() -> None:
    comment, limits = chunk(b": still here\n\n"), RelayLimits()
    setup = Setup()
    setup.receive(STREAM_HEAD, chunk(EVENTS[0]))
    for setup.now in (1.0, limits.idle_seconds):
        setup.receive(comment)
        setup.relay.check(setup.now)
    assert setup.answer_body == chunk(EVENTS[0]) + comment * 2
    setup.relay.check(limits.idle_seconds + 0.1)
    with pytest.raises(WorkerTimeout, match="silent"):
        await setup.relay.ended()


async def test_progress_does_not_prolong_a_request_beyond_its_time_in_all() -> None:
    limits = RelayLimits()
    setup = Setup()
    setup.receive(STREAM_HEAD)
    setup.now = limits.request_seconds
    setup.receive(chunk(EVENTS[0]))
    setup.relay.check(setup.now)
    setup.relay.check(limits.request_seconds + 0.1)
    with pytest.raises(WorkerTimeout, match="longer than"):
        await setup.relay.ended()


async def test_stream_of_single_events_that_breaks_gets_its_error_event() -> None:
    setup = Setup()
    setup.receive(STREAM_HEAD, *map(chunk, EVENTS))
    setup.connection.eof_received()
    with pytest.raises(WorkerError) as failure:
        await setup.relay.ended()
    assert setup.relay.cut_short(failure.value, Protocol.OTHER)
    assert dechunked(setup.answer_body).startswith(b"".join(EVENTS) + b'data: {"error"')


async def test_a_check_tells_how_many_events_more_a_stream_has_brought() -> None:
    setup = Setup()
    setup.receive(STREAM_HEAD)
    setup.relay.check(0.0)
    setup.receive(chunk(event("a")), chunk(event("b") + event("c")))
    setup.relay.check(1.0)
    setup.relay.check(2.0)
    setup.receive(chunk(event("d")))
    setup.relay.check(3.0)
    assert setup.observer.output == [3, 1]
