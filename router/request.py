"""A client's request as it waits for its answer: head, collected body, and the error that refuses it."""

from __future__ import annotations

from router.errors import RouterError
from router.wire.endpoints import Endpoint
from router.wire.http1 import RequestHead


class Request:
    """`endpoint` is set when the head was admitted, `error` when the request is refused unhandled. Without a
    `head` it was not read to its end."""

    __slots__ = ("body", "endpoint", "error", "head", "num_bytes", "pieces", "received_at", "seen_head")

    def __init__(
        self, head: RequestHead | None, received_at: float, error: RouterError | None = None
    ) -> None:
        self.head = head
        self.seen_head = head
        """The head of a request that was not read to its end as well, where that much was understood."""
        self.received_at = received_at
        self.error = error
        self.endpoint: Endpoint | None = None
        self.pieces: list[bytes] = []
        self.num_bytes = 0
        """Of the body, as collected."""
        self.body = b""

    def body_complete(self) -> None:
        """Make one `body` of the pieces; a body that came in one piece is not copied."""
        pieces = self.pieces
        if pieces:
            self.body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            self.pieces = []
