"""HTTP sessions for calls to workers, whatever their address looks like."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager

import aiohttp

from router.engines.limits import PROBE_CONNECTIONS, PROBE_IDLE_SECONDS
from router.tls import ReloadedContext
from router.worker_address import WorkerAddress


class WorkerSessions:
    """One session for the whole network, and one for each Unix socket: a connector of aiohttp reaches either.
    `tls` is for workers whose address says so. Made within a running event loop, closed by its owner."""

    def __init__(self, tls: ReloadedContext) -> None:
        self._tls = tls
        self._network = _session(
            aiohttp.TCPConnector(limit=PROBE_CONNECTIONS, keepalive_timeout=PROBE_IDLE_SECONDS)
        )
        self._by_path: dict[str, aiohttp.ClientSession] = {}

    async def __aenter__(self) -> WorkerSessions:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection."""
        await asyncio.gather(*(session.close() for session in (self._network, *self._by_path.values())))

    def request(
        self,
        address: WorkerAddress,
        method: str,
        path: str,
        *,
        data: bytes | None,
        headers: Mapping[str, str],
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """As aiohttp's own; redirects are answers."""
        return self._session_for(address).request(
            method,
            address.origin + path,
            data=data,
            headers=headers,
            ssl=self._tls.context if address.is_tls else True,
            allow_redirects=False,
        )

    def _session_for(self, address: WorkerAddress) -> aiohttp.ClientSession:
        if not address.path:
            return self._network
        session = self._by_path.get(address.path)
        if session is None:
            connector = aiohttp.UnixConnector(address.path, keepalive_timeout=PROBE_IDLE_SECONDS)
            session = self._by_path[address.path] = _session(connector)
        return session


def _session(connector: aiohttp.BaseConnector) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
