"""A system without descriptors is asked again later, and names stand for all their addresses."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl

import pytest

from router import tls_listener
from router.limits import RelayLimits
from router.tls_listener import TlsListener, listening_sockets
from tests.support.waiting import eventually


class Exhausted(socket.socket):
    """Has no descriptor for the first who comes."""

    num_asked = 0

    def accept(self) -> tuple[socket.socket, object]:
        self.num_asked += 1
        if self.num_asked == 1:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


async def test_no_descriptors_left(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(tls_listener, "NO_DESCRIPTORS_SECONDS", 0.01)
    listening = Exhausted()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    listening.setblocking(False)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    refuses = TlsListener([listening], tls, lambda: pytest.fail("no"), lambda n: False, RelayLimits())
    reader, writer = await asyncio.open_connection(*listening.getsockname())
    assert await reader.read() == b"", "closed once there was a descriptor to do so"
    writer.close()
    assert "cannot accept connections: Too many open files" in caplog.text
    await eventually(lambda: listening.num_asked > 1)
    refuses.close()
    refuses.close()


async def test_all_addresses_of_a_name_or_none() -> None:
    (taken,) = await listening_sockets("127.0.0.1", 0, 8)
    with taken:
        assert not taken.getblocking()
        with pytest.raises(OSError):
            await listening_sockets("127.0.0.1", taken.getsockname()[1], 8)
