"""A ZMQ context for one test."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import zmq


@contextlib.contextmanager
def zmq_context() -> Iterator[zmq.Context]:
    """Every socket of it must be closed in the end. Those that a failed test left open are closed all the
    same: `term` would wait for them, and the whole run with it."""
    context = zmq.Context()
    try:
        yield context
        assert all(socket.closed for socket in context._sockets), "a socket was left open"
    finally:
        context.destroy(linger=0)
