"""Bare connections to workers, whatever their address looks like."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from router.tls import ReloadedContext
from router.worker_address import WorkerAddress

ProtocolT = TypeVar("ProtocolT", bound=asyncio.BaseProtocol)


class Dialer:
    """Connects, with `tls` where the address says so."""

    def __init__(self, tls: ReloadedContext) -> None:
        self._tls = tls

    async def dial(self, address: WorkerAddress, protocol: Callable[[], ProtocolT]) -> ProtocolT:
        """A connection that is ready for use, its peer's certificate checked. Raises OSError."""
        loop = asyncio.get_running_loop()
        if address.port is None:
            _, connection = await loop.create_unix_connection(protocol, address.path)
        else:
            tls = self._tls.context if address.is_tls else None
            _, connection = await loop.create_connection(protocol, address.host, address.port, ssl=tls)
        return connection
