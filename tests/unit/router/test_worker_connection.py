"""Answers out of a worker's bytes: what the relay's own tests do not show."""

from __future__ import annotations

import pytest

from router.worker_connection import WorkerConnection
from tests.support.fake_transport import FakeTransport
from tests.support.raw_worker import json_answer
from tests.support.sinks import NullSink

SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"


def connection_given_back_to(given_back: list[WorkerConnection]) -> WorkerConnection:
    connection = WorkerConnection(given_back.append)
    connection.connection_made(FakeTransport())
    return connection


def ask_for_a_websocket(connection: WorkerConnection, *pieces: bytes) -> list[tuple[int, bytes]]:
    """What the asker was handed: status and bytes behind the head."""
    handed: list[tuple[int, bytes]] = []
    connection.switched = lambda head, rest: handed.append((head.status, rest))
    connection.send(NullSink(), b"GET", b"HEAD", b"")
    for piece in pieces:
        connection.data_received(piece)
    return handed


@pytest.mark.parametrize("cut", [1, len(SWITCH) - 1, len(SWITCH)])
def test_connection_is_handed_over_when_the_worker_switches(cut: int) -> None:
    pieces = (SWITCH[:cut], SWITCH[cut:] + b"frame") if cut < len(SWITCH) else (SWITCH + b"frame",)
    connection = connection_given_back_to([])
    assert ask_for_a_websocket(connection, *pieces) == [(101, b"frame")]
    connection.abort()


def test_early_hints_may_come_before_the_switch() -> None:
    connection = connection_given_back_to([])
    assert ask_for_a_websocket(connection, b"HTTP/1.1 103 Early Hints\r\n\r\n" + SWITCH) == [(101, b"")]


@pytest.mark.parametrize(
    "answer", [SWITCH.replace(b"websocket", b"h2c"), SWITCH.replace(b"Connection: Upgrade\r\n", b"")]
)
def test_switch_to_something_else_is_an_error(answer: bytes) -> None:
    connection = connection_given_back_to([])
    assert ask_for_a_websocket(connection, answer) == []
    assert connection.transport.state == "aborted"


def test_answer_that_declines_leaves_a_connection_that_switches_no_more() -> None:
    given_back: list[WorkerConnection] = []
    connection = connection_given_back_to(given_back)
    assert ask_for_a_websocket(connection, json_answer()) == []
    assert given_back == [connection]
    connection.send(NullSink(), b"POST", b"HEAD", b"")
    connection.data_received(SWITCH)
    assert connection.transport.state == "aborted"
