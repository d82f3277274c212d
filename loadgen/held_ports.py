"""Ports of a mock worker that is down, kept for its return.

While nothing listens there the system may give them to any other connection or process, and the worker could
not come back. Bound without listening they are nobody else's, and connecting is refused as before.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable


class HeldPorts:
    """Of one host."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._sockets: list[socket.socket] = []

    def hold(self, ports: Iterable[int]) -> None:
        """As many of them as are free."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        for port in ports:
            holder = socket.socket(family)
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._sockets.append(holder)
            with contextlib.suppress(OSError):
                holder.bind((self._host, port))

    def release(self) -> None:
        for holder in self._sockets:
            holder.close()
        self._sockets.clear()
