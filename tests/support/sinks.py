"""Takers of workers' answers."""

from __future__ import annotations


class NullSink:
    """Takes an answer and drops it."""

    takes_events = False

    def head(self, head: object) -> None:
        pass

    def body(self, raw: bytes, pieces: list[bytes], ended: bool) -> None:
        pass

    def failed(self, error: object) -> None:
        pass
