"""An answer that is read to its end and not relayed: that of a leg whose work another worker goes on with."""

from __future__ import annotations

import asyncio

from router.errors import RouterError, WorkerProtocolError
from router.limits import LEG_ANSWER_BYTES_MAX
from router.wire.http1 import ResponseHead
from router.worker_connection import WorkerConnection


class Collector:
    """An AnswerSink. `ended()` returns the body, or raises the worker's error."""

    __slots__ = ("_connection", "_done", "_num_bytes", "_pieces", "response", "takes_events")

    def __init__(self) -> None:
        self.response: ResponseHead | None = None
        self.takes_events = False
        self._connection: WorkerConnection | None = None
        self._pieces: list[bytes] = []
        self._num_bytes = 0
        self._done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def start(self, connection: WorkerConnection, method: bytes, head: bytes, body: bytes) -> None:
        """Send the request; the answer follows by itself."""
        self._connection = connection
        connection.send(self, method, head, body)

    async def ended(self) -> bytes:
        return await self._done

    def abort(self) -> None:
        """Stop the worker's work on an answer that is not complete; harmless when it is."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()
        if self._done.done() and not self._done.cancelled():
            self._done.exception()  # seen, even if nobody waits for it any more

    # The worker's side

    def head(self, head: ResponseHead) -> None:
        self.response = head

    def body(self, raw: bytes, pieces: list[bytes], ended: bool) -> None:
        self._pieces += pieces
        self._num_bytes += sum(map(len, pieces))
        if ended:
            self._connection = None
            if not self._done.done():
                self._done.set_result(b"".join(self._pieces))
        elif self._num_bytes > LEG_ANSWER_BYTES_MAX and self._connection is not None:
            self._connection.fail(WorkerProtocolError("The prefill worker's answer is too large"))

    def event(self, raw: bytes) -> None:
        raise AssertionError("events are not asked for")

    def failed(self, error: RouterError) -> None:
        self._connection = None
        if not self._done.done():
            self._done.set_exception(error)
