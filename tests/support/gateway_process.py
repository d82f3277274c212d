"""A gateway as its users run it: a process of its own, started over the command line, driven over sockets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp

REPOSITORY = Path(__file__).resolve().parents[2]
SERVING = re.compile(r"serving on (https?)://\S+?:(\d+).*admin on http://\S+?:(\d+)")


class GatewayProcess:
    """`kvgate serve` on ports of the system's choice; `lines` holds everything that it printed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []
        self.scheme = "http"
        self.port = 0
        self.admin_port = 0
        self._printed = asyncio.Condition()
        self._reader = asyncio.ensure_future(self._read())

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}"

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            async with self._printed:
                self.lines.append(line.decode(errors="replace").rstrip())
                self._printed.notify_all()
        async with self._printed:
            self.lines.append("<end of output>")
            self._printed.notify_all()

    async def printed(self, pattern: str, *, within: float = 30.0) -> re.Match[str]:
        """Waits for a line that matches; fails with all that was printed when none comes."""
        expression = re.compile(pattern)

        def found() -> re.Match[str] | None:
            return next((match for line in self.lines if (match := expression.search(line))), None)

        def done() -> bool:
            return found() is not None or "<end of output>" in self.lines[-1:]

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within), self._printed:
                await self._printed.wait_for(done)
        match = found()
        assert match is not None, f"no line matches {pattern!r} in:\n" + "\n".join(self.lines)
        return match

    async def admin(self, path: str) -> Any:
        async with aiohttp.ClientSession() as session, session.get(self.admin_url + path) as response:
            assert response.status == 200, await response.text()
            return await response.json()

    async def workers(self, *, until: Callable[[list[dict[str, Any]]], bool], within: float = 30.0) -> Any:
        """The rows of /workers, once they satisfy the condition."""
        async with asyncio.timeout(within):
            while not until(rows := (await self.admin("/workers"))["workers"]):
                await asyncio.sleep(0.05)  # polling a condition of another process
        return rows

    async def stop(self) -> int:
        """SIGTERM, as an init system would; the exit code."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(40):
            code = await self.process.wait()
        await self._reader
        return code


@contextlib.asynccontextmanager
async def running_gateway(*arguments: str, **environment: str) -> AsyncIterator[GatewayProcess]:
    """Starts the gateway, waits until it listens, and stops it at the end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "router", "serve", "--host", "127.0.0.1", "--port", "0", "--admin-port", "0",
        *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        cwd=REPOSITORY, env={**os.environ, **environment},
    )  # fmt: skip
    gateway = GatewayProcess(process)
    try:
        match = await gateway.printed(SERVING.pattern)
        gateway.scheme, gateway.port, gateway.admin_port = match[1], int(match[2]), int(match[3])
        yield gateway
    finally:
        if process.returncode is None:
            process.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(40):
                    await process.wait()
        if process.returncode is None:
            process.kill()
            await process.wait()
        await gateway._reader
        process._transport.close()  # type: ignore[attr-defined]
