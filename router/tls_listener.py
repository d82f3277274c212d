"""Accepts connections that begin with a TLS handshake: as many as there is room for, and no more.

The event loop's own server tells of a connection only once its handshake is done. Those under way hold a
descriptor and some memory each, for as long as a client likes to be silent within its time; here they are
counted. What happens on a connection after that lives in `client_connection`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Sequence

from router.client_connection import ClientConnection
from router.limits import ACCEPTS_AT_ONCE, NO_DESCRIPTORS_SECONDS, RelayLimits

_logger = logging.getLogger("kvgate.tls")


class TlsListener:
    """Listens on `sockets` from the start. `has_room(n)`: whether another may begin while n are under way."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        tls: ssl.SSLContext,
        connect: Callable[[], ClientConnection],
        has_room: Callable[[int], bool],
        limits: RelayLimits,
    ) -> None:
        self.sockets = sockets
        self._tls = tls
        self._connect = connect
        self._has_room = has_room
        self._limits = limits
        self._handshakes: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._listen()

    @property
    def num_handshakes(self) -> int:
        """Under way."""
        return len(self._handshakes)

    def close(self) -> None:
        """Accept no more, and drop what has not ended its handshake."""
        for listening in self.sockets:
            self._loop.remove_reader(listening)
            listening.close()
        self.sockets = ()
        for handshake in self._handshakes:
            handshake.cancel()

    def _listen(self) -> None:
        for listening in self.sockets:
            self._loop.add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        """Some of those that wait; the loop asks again for the rest."""
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                connection, _address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _logger.error("cannot accept connections: %s; tried again soon", error.strerror)
                self._pause()
                return
            if not self._has_room(self.num_handshakes):
                connection.close()
                continue
            connection.setblocking(False)
            handshake = self._loop.create_task(self._shake_hands(connection))
            self._handshakes.add(handshake)
            handshake.add_done_callback(self._handshakes.discard)

    def _pause(self) -> None:
        """No descriptors are left: asking on would only spin."""
        for listening in self.sockets:
            self._loop.remove_reader(listening)
        self._loop.call_later(NO_DESCRIPTORS_SECONDS, self._listen)

    async def _shake_hands(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # a client that does not want to, or cannot
            await self._loop.connect_accepted_socket(
                self._connect,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=self._limits.head_seconds,
                ssl_shutdown_timeout=self._limits.client_write_seconds,
            )


async def listening_sockets(host: str, port: int, backlog: int) -> list[socket.socket]:
    """One for each address of `host`, without waiting in `accept`. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, *_, address in dict.fromkeys(found):
            sockets.append(socket.create_server(address, family=family, backlog=backlog))
            sockets[-1].setblocking(False)
    except OSError:
        for made in sockets:
            made.close()
        raise
    return sockets
