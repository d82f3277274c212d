"""Bare connections to workers, whatever their address looks like. How long one may take is up to callers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar, cast

from router.host_names import HostNames
from router.limits import NEXT_ADDRESS_SECONDS
from router.tls import ReloadedContext
from router.worker_address import WorkerAddress

ProtocolT = TypeVar("ProtocolT", bound=asyncio.BaseProtocol)
Opened = tuple[asyncio.BaseTransport, ProtocolT]


class Dialer:
    """Connects, with `tls` where the address says so."""

    def __init__(self, tls: ReloadedContext, names: HostNames) -> None:
        self._tls = tls
        self._names = names

    async def dial(self, address: WorkerAddress, protocol: Callable[[], ProtocolT]) -> ProtocolT:
        """A connection that is ready for use, its peer's certificate checked. Raises OSError."""
        loop = asyncio.get_running_loop()
        if address.port is None:
            _, connection = await loop.create_unix_connection(protocol, address.path)
        elif not address.is_literal:
            connection = await self._dial_name(address, address.port, protocol)
        else:
            tls = self._tls.context if address.is_tls else None
            _, connection = await loop.create_connection(protocol, address.host, address.port, ssl=tls)
        return connection

    async def _dial_name(
        self, address: WorkerAddress, port: int, protocol: Callable[[], ProtocolT]
    ) -> ProtocolT:
        host, loop = address.host, asyncio.get_running_loop()
        tls, name = (self._tls.context, host) if address.is_tls else (None, None)

        async def connect(numeric: str) -> Opened[ProtocolT]:
            return await loop.create_connection(protocol, numeric, port, ssl=tls, server_hostname=name)

        try:
            numeric, (_, connection) = await first_to_connect(await self._names.addresses(host), connect)
        except OSError:
            self._names.forget(host)
            raise
        self._names.prefer(host, numeric)
        return connection


async def first_to_connect(
    addresses: Sequence[str], connect: Callable[[str], Coroutine[Any, Any, Opened[ProtocolT]]]
) -> tuple[str, Opened[ProtocolT]]:
    """The first address that answers, and its connection: each next one is tried when those before it have
    failed or have been silent for a while (RFC 8305, "Happy Eyeballs"). Raises the last one's OSError."""
    if len(addresses) == 1:
        return addresses[0], await connect(addresses[0])
    untried = deque(addresses)
    attempts: dict[asyncio.Task[Opened[ProtocolT]], str] = {}
    pending: set[asyncio.Task[Opened[ProtocolT]]] = set()
    try:
        while True:
            if untried:
                attempt = asyncio.get_running_loop().create_task(connect(untried[0]))
                attempts[attempt] = untried.popleft()
                pending.add(attempt)
            done, pending = await asyncio.wait(
                pending,
                timeout=NEXT_ADDRESS_SECONDS if untried else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for attempt in done:
                if attempt.exception() is None:
                    return attempts.pop(attempt), attempt.result()
            if not untried and not pending:
                await attempt  # raises
    finally:
        for attempt in attempts:
            _drop(attempt)


def _drop(attempt: asyncio.Task[Opened[ProtocolT]]) -> None:
    """Another one was first, or nobody waits any more."""
    if attempt.cancel() or attempt.cancelled() or attempt.exception() is not None:
        return
    transport, _ = attempt.result()
    cast(asyncio.Transport, transport).abort()  # uvloop's transports are of no asyncio class
