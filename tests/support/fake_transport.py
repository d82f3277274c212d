"""A transport that keeps what is written, for driving protocols without sockets."""

from __future__ import annotations

import asyncio


class FakeTransport(asyncio.Transport):
    """`written`: everything so far; `state`: open, closed (in order) or aborted."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.state = "open"
        self.is_reading_paused = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def writelines(self, list_of_data: object) -> None:
        raise NotImplementedError

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self.state != "open"

    def close(self) -> None:
        self.state = "closed"

    def abort(self) -> None:
        self.state = "aborted"

    def pause_reading(self) -> None:
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        self.is_reading_paused = False
