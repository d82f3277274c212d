"""Plain calls to a worker's HTTP API besides the relayed ones, bounded in time and in bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp

from router.engines.limits import PROBE_SECONDS
from router.engines.sessions import WorkerSessions
from router.tls import connect_failure
from router.worker_address import WorkerAddress


class CallFailed(Exception):
    """No usable answer came; the text says why, without the address."""


class CallTimedOut(CallFailed):
    """None came in time."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer, whatever its status."""

    status: int
    body: bytes

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


class WorkerHttp:
    """One worker's HTTP API. `headers`, an API key say, go with every call. `sessions` stay their owner's."""

    def __init__(
        self,
        sessions: WorkerSessions,
        url: str,
        headers: Mapping[str, str] | None = None,
        *,
        timeout_seconds: float = PROBE_SECONDS,
    ) -> None:
        self._sessions = sessions
        self._address = WorkerAddress.parse(url)
        self._headers = dict(headers or {})
        self._timeout_seconds = timeout_seconds

    async def get(self, path: str, max_bytes: int) -> Answer:
        """Raises CallFailed when nothing comes, or more than `max_bytes`."""
        return await self._call("GET", path, None, max_bytes)

    async def post_json(self, path: str, body: bytes, max_bytes: int) -> Answer:
        """Raises CallFailed as `get` does."""
        return await self._call("POST", path, body, max_bytes)

    async def _call(self, method: str, path: str, body: bytes | None, max_bytes: int) -> Answer:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                try:
                    return await self._try(method, path, body, max_bytes)
                except aiohttp.ClientConnectorError:
                    raise
                except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                    # A kept connection that the worker was about to close; no call here harms when it is made
                    # twice.
                    return await self._try(method, path, body, max_bytes)
        except TimeoutError:
            raise CallTimedOut(f"{path} did not answer within {self._timeout_seconds:g} s") from None
        except aiohttp.ClientConnectorCertificateError as error:
            raise CallFailed(f"cannot connect: {connect_failure(error.certificate_error)}") from None
        except aiohttp.ClientConnectorError as error:
            raise CallFailed(f"cannot connect: {connect_failure(error.os_error)}") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise CallFailed(f"{path} failed: {error or type(error).__name__}") from None

    async def _try(self, method: str, path: str, body: bytes | None, max_bytes: int) -> Answer:
        headers = self._headers if body is None else {**self._headers, "content-type": "application/json"}
        async with self._sessions.request(
            self._address, method, path, data=body, headers=headers
        ) as response:
            return Answer(response.status, await _read(response, max_bytes))


async def _read(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    parts = []
    size = 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > max_bytes:
            response.close()
            raise CallFailed(f"{response.url.path} answered more than {max_bytes} bytes")
        parts.append(part)
    return b"".join(parts)
