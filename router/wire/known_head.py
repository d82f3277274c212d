"""The head that came last on a connection, known again by its bytes.

A client or worker on a kept-alive connection sends nearly the same head every time: only the digits of its
Content-Length differ. What llhttp and the checks made of such bytes once holds for them again, so a second
parse, a third of a small request's cost, can be spared. Anything that differs by one byte is parsed anew.
"""

from __future__ import annotations

from typing import Generic, Protocol, Self, TypeVar

_LENGTH_LINE = b"\r\ncontent-length: "
_DIGITS_MAX = 15
"""More than any body that is accepted."""

_HEAD_BYTES_MAX = 4096
"""A longer head is parsed every time: ten thousand idle connections may remember 40 MB."""


class SizedHead(Protocol):
    """The head of a message with a Content-Length."""

    def with_length(self, content_length: int) -> Self:
        """The same head before a body of another length."""


Head = TypeVar("Head", bound=SizedHead)


class KnownHead(Generic[Head]):
    """One head with its bytes, but for the digits of its length. Knows nothing at first."""

    __slots__ = ("_after", "_before", "_head")

    def __init__(self) -> None:
        self._head: Head | None = None
        self._before = b""
        """Up to the digits."""
        self._after = b""

    def remember(self, data: bytes, head: Head) -> None:
        """`head` is what `data`, parsed without complaint, begins with; it has a Content-Length."""
        self._head = None
        end = data.find(b"\r\n\r\n", 0, _HEAD_BYTES_MAX)
        at = data[: max(0, end + 2)].lower().find(_LENGTH_LINE) + len(_LENGTH_LINE)
        digits_end = data.find(b"\r", at)
        if end >= 0 and at >= len(_LENGTH_LINE) and data[at:digits_end].isdigit():
            self._head, self._before, self._after = head, data[:at], data[digits_end : end + 4]

    def recall(self, data: bytes) -> tuple[Head, int, bytes] | None:
        """When `data` begins with the known bytes: the head with the length that it says now, the number of
        its bytes, and what follows it."""
        head, before, after = self._head, self._before, self._after
        if head is None or not data.startswith(before):
            return None
        at = len(before)
        digits_end = data.find(b"\r", at, at + _DIGITS_MAX + 1)
        digits = data[at:digits_end]
        if digits_end < 0 or not data.startswith(after, digits_end) or not digits.isdigit():
            return None
        num_bytes = digits_end + len(after)
        return head.with_length(int(digits)), num_bytes, data[num_bytes:]
