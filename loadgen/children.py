"""Processes that the demo starts and always ends: each logs to a file, whose last lines tell why it
failed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

READY_SECONDS_MAX = 30.0
READY_POLL_SECONDS = 0.05
STOP_SECONDS_MAX = 10.0
"""After SIGTERM; then the process is killed."""
LOG_LINES_SHOWN = 15
PORTS = (15_000, 30_000)
"""Below the ports that the system gives to outgoing connections: those may be taken for a minute after
use."""
PORT_ATTEMPTS = 200


class ChildError(Exception):
    """A process that did not come up, or ended on its own; the message holds the end of its log."""


class Child:
    """`async with Child("gateway", ["serve", ...], log)`: a `kvgate` subcommand, ended with the block."""

    def __init__(self, name: str, arguments: Sequence[str], log: Path) -> None:
        self.name = name
        self._arguments = arguments
        self._log = log
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "router", *self._arguments,
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                if process.returncode is None:
                    process.kill()

    async def ready(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Polls until `condition`; raises ChildError when the process ends before, or takes too long."""
        try:
            async with asyncio.timeout(READY_SECONDS_MAX):
                while not await condition():
                    self.check()
                    await asyncio.sleep(READY_POLL_SECONDS)
        except TimeoutError as error:
            raise ChildError(self._told(f"not ready after {READY_SECONDS_MAX:g} s")) from error

    def check(self) -> None:
        """Raises ChildError when the process has ended."""
        if self._process is not None and self._process.returncode is not None:
            raise ChildError(self._told(f"ended with code {self._process.returncode}"))

    def _told(self, what: str) -> str:
        lines = self._log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
        return "\n".join([f"{self.name}: {what}; the end of its log:", *lines])


def free_ports(offsets: Sequence[int]) -> int:
    """A base port such that base + each offset is free on loopback at this moment. Raises OSError for
    none."""
    chance = random.SystemRandom()  # two demos on one machine must not go for the same ports
    for _attempt in range(PORT_ATTEMPTS):
        base = chance.randrange(*PORTS)
        if all(_is_free(base + offset) for offset in offsets):
            return base
    raise OSError("found no free ports next to each other")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # old connections do not count
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            return False
        return True
