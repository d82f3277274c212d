"""A transport that keeps what is written, for driving protocols without sockets."""

from __future__ import annotations

import asyncio


class FakeTransport(asyncio.Transport):
    """`written`: everything so far; `state`: open, closed (in order) or aborted; `protocol`: who took
    it over. Like TLS it cannot be closed one way unless `can_half_close` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.state = "open"
        self.is_reading_paused = False
        self.protocol: asyncio.BaseProtocol | None = None
        self.can_half_close = False
        self.is_half_closed = False
        self.num_unsent = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def writelines(self, list_of_data: object) -> None:
        raise NotImplementedError

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.num_unsent

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def can_write_eof(self) -> bool:
        return self.can_half_close

    def write_eof(self) -> None:
        self.is_half_closed = True

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
