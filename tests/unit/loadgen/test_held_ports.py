"""A port that is held is nobody else's, refuses connections, and can be had again."""

from __future__ import annotations

import errno
import socket

import pytest

from loadgen.held_ports import HeldPorts


def test_held_port() -> None:
    held = HeldPorts("127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        held.hold([port])  # in use: left alone
        held.release()
    held.hold([port])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    with socket.socket() as other, pytest.raises(OSError) as failure:
        other.bind(("127.0.0.1", port))
    assert failure.value.errno == errno.EADDRINUSE
    held.release()
    with socket.create_server(("127.0.0.1", port)):
        pass
