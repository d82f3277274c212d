"""A ZMQ context for one test."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import zmq


@contextlib.contextmanager
def zmq_context() -> Iterator[zmq.Context]:
    """The process's one, as programs use it: ending a context waits for ZMQ's threads, once in many runs for
    ever. Every socket that the test made must be closed in the end; those that a failed test left open are
    closed all the same."""
    context = zmq.Context.instance()
    before = set(context._sockets)
    yield context
    left = [socket for socket in context._sockets if socket not in before and not socket.closed]
    for socket in left:
        socket.close(linger=0)
    assert not left, "a socket was left open"
