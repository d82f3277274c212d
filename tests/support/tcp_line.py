"""A line between two TCP ports that can be cut: connections over it break, and new ones are refused."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class TcpLine:
    """From a free port of the loopback to `target`, once open."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def mend(self) -> None:
        """Connections are taken, again under the port that it had."""
        self._server = await asyncio.start_server(self._join, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await self._server.wait_closed()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        both = {writer, far_writer}
        self._writers |= both
        try:
            await asyncio.gather(_carry(reader, far_writer), _carry(far_reader, writer))
        finally:
            self._writers -= both
            for each in both:
                each.transport.abort()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


@contextlib.asynccontextmanager
async def tcp_line(target: int) -> AsyncIterator[TcpLine]:
    line = TcpLine(target)
    await line.mend()
    try:
        yield line
    finally:
        await line.cut()
