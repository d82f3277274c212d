"""Messages whose head was seen before are read without llhttp: what is read must be the same as with it."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from router.limits import RelayLimits
from router.request import Request
from router.request_reader import RequestReader
from router.wire.http1 import ResponseHead
from router.wire.known_head import KnownHead
from router.worker_connection import WorkerConnection
from tests.fuzz.corpus import ANSWERS, JSON, REQUESTS, WORDS
from tests.support.fake_transport import FakeTransport
from tests.support.raw_worker import json_answer
from tests.support.relay import post

LIMITS = RelayLimits(body_bytes=200)


class NothingKnown(KnownHead[object]):
    """Every head is new."""

    def recall(self, data: bytes) -> None:
        return None


class RequestLog:
    """A RequestSink that keeps what it is told, but for the counts that only bound memory."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def head_arrived(self, request: Request, num_bytes: int) -> None:
        self.told.append(("head", request.head))

    def body_arrived(self, num_bytes: int) -> None:
        pass

    def request_arrived(self, request: Request) -> None:
        self.told.append(("whole", request.head, request.body, request.num_bytes))

    def beyond_arrived(self, data: bytes) -> None:
        self.told.append(("beyond", data))

    def refused(self, error: Exception) -> None:
        self.told.append(("refused", str(error)))


def read_requests(pieces: list[bytes], *, knows: bool) -> list[object]:
    log = RequestLog()
    reader = RequestReader(log, LIMITS, lambda: 0.0)
    if not knows:
        reader._known = NothingKnown()
    for piece in pieces:
        if not (log.told and log.told[-1][0] == "refused"):
            reader.feed(piece)
    return log.told


class AnswerLog:
    takes_events = False

    def __init__(self) -> None:
        self.told: list[object] = []

    def head(self, head: ResponseHead) -> None:
        self.told.append(("head", head))

    def body(self, raw: bytes, pieces: list[bytes], ended: bool) -> None:
        self.told.append(("body", raw, b"".join(pieces), ended))

    def failed(self, error: Exception) -> None:
        self.told.append(("failed", str(error)))


def read_answers(exchanges: list[tuple[bytes, list[bytes]]], *, knows: bool) -> list[object]:
    """Exchange after exchange on one connection, for as long as it may be used again."""
    given_back: list[WorkerConnection] = []
    connection = WorkerConnection(given_back.append)
    connection.connection_made(FakeTransport())
    if not knows:
        connection._known = NothingKnown()
    told: list[object] = []
    for method, pieces in exchanges:
        log = AnswerLog()
        connection.send(log, method, b"", b"")
        for piece in pieces:
            if connection.transport.state == "open" and connection not in given_back:
                connection.data_received(piece)
        told += [method, log.told, connection.transport.state]
        if connection not in given_back:
            break
        given_back.clear()
    return told


def pieces_of(data: bytes, cut: int) -> list[bytes]:
    at = cut % (len(data) + 1)
    return [piece for piece in (data[:at], data[at:]) if piece]


KINDS = ("longer", "longer", "longer", "later", "digits", "word", "followed", "other")


@st.composite
def conversations(draw: st.DrawFn, messages: tuple[bytes, ...], others: tuple[bytes, ...]) -> list[bytes]:
    """One message again and again, its head the same but for its length, or nearly the same."""
    message = draw(st.sampled_from(messages))
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=5))
    return [message] + [_variant(draw, message, kind, others) for kind in kinds]


def _variant(draw: st.DrawFn, message: bytes, kind: str, others: tuple[bytes, ...]) -> bytes:
    if kind == "longer":
        body = draw(st.binary(max_size=150))
        head = message.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
        return re.sub(rb"(?i)(content-length: )\d+", rb"\g<1>%d" % len(body), head) + body
    if kind == "later":
        return re.sub(rb"(?i)(x-length: )5", rb"\g<1>6", message)
    if kind == "digits":
        digits = draw(st.sampled_from([b"0", b"007", b"+5", b"5 ", b"5, 5", b"9" * 16, b"999", b"5\r\nX: y"]))
        return re.sub(rb"(?i)(content-length: )\d+", lambda found: found[1] + digits, message)
    if kind == "word":
        at = draw(st.integers(0, len(message)))
        return message[:at] + draw(st.sampled_from(WORDS)) + message[at:]
    other = draw(st.sampled_from(others))
    return message + other if kind == "followed" else other


FEW_REQUESTS = (
    post(JSON, extra="X-Length: 5\r\nX-Request-Id: mine\r\n"),
    b"POST /v1/completions HTTP/1.1\r\nContent-Length: 2\r\nX-Length: 5\r\nHost: g\r\n\r\n{}",
)
FEW_ANSWERS = (
    json_answer(JSON, extra=b"X-Length: 5\r\n"),
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Length: 5\r\n\r\n{}",
)
CUTS = st.lists(st.sampled_from([0, 0, 0, 50, 90, 110, 115]), min_size=6, max_size=6)
"""0: in one piece, as nearly always."""


@given(conversations(FEW_REQUESTS, REQUESTS), CUTS)
@example([post(b"{}"), post(b"{}") + post(b"[]"), post(b"[1]")], [0, 0, 0])
@example([post(b"{}"), post(b'{"a":1}'), post(b"x" * 201)], [0, 90, 0])
def test_requests_are_read_as_if_every_head_were_new(messages: list[bytes], cuts: list[int]) -> None:
    pieces = [
        piece for message, cut in zip(messages, cuts, strict=False) for piece in pieces_of(message, cut)
    ]
    assert read_requests(pieces, knows=True) == read_requests(pieces, knows=False)


@given(
    conversations(FEW_ANSWERS, ANSWERS),
    CUTS,
    st.lists(st.sampled_from([b"POST", b"POST", b"POST", b"HEAD"]), min_size=6, max_size=6),
)
@example([json_answer(b"{}"), json_answer(b"{}")], [0, 0], [b"POST", b"HEAD"])
@example([json_answer(b"{}"), json_answer(b"[1]") + b"x"], [0, 0], [b"POST", b"POST"])
def test_answers_are_read_as_if_every_head_were_new(
    messages: list[bytes], cuts: list[int], methods: list[bytes]
) -> None:
    exchanges = [
        (method, pieces_of(message, cut))
        for method, message, cut in zip(methods, messages, cuts, strict=False)
    ]
    assert read_answers(exchanges, knows=True) == read_answers(exchanges, knows=False)


def test_second_request_with_the_same_head_does_not_go_through_llhttp() -> None:
    reader = RequestReader(log := RequestLog(), LIMITS, lambda: 0.0)
    reader.feed(post(b"{}"))
    del reader._parser
    reader.feed(post(b'{"a":1}'))
    assert [told[2] for told in log.told if told[0] == "whole"] == [b"{}", b'{"a":1}']


def test_second_answer_with_the_same_head_does_not_go_through_llhttp() -> None:
    connection = WorkerConnection(lambda _: None)
    connection.connection_made(FakeTransport())
    connection.send(AnswerLog(), b"POST", b"", b"")
    connection.data_received(json_answer(b"{}"))
    del connection._parser
    connection.send(log := AnswerLog(), b"POST", b"", b"")
    connection.data_received(json_answer(b"[1]"))
    assert log.told[-1] == ("body", b"[1]", b"[1]", True)
