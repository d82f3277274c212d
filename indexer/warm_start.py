"""Snapshots on their way: out of a file or a peer before the start, into a file now and then. I/O.

Nothing here keeps a program from starting or from ending: what fails is told in a warning, and the start is
cold. A file that was cut short by a crash is known by its checksums, so writing needs no fsync.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

import aiohttp

from indexer.limits import SNAPSHOT_FETCH_BYTES, SNAPSHOT_FETCH_SECONDS, SNAPSHOT_WAIT_SECONDS
from indexer.snapshot import PublisherSnapshot, SnapshotError, read_snapshot

_logger = logging.getLogger("kvgate.index")


class WarmStart:
    """What is known of workers from before the start; each is handed out once."""

    def __init__(self) -> None:
        self._snapshots: dict[str, PublisherSnapshot] = {}

    def read_file(self, path: str) -> None:
        """A file that is not there yet is the first start."""
        try:
            self._note(path, Path(path).read_bytes())
        except FileNotFoundError:
            _logger.info("no snapshot at %s yet: starting cold", path)
        except (OSError, SnapshotError) as error:
            _logger.warning("snapshot %s can't be used, starting cold: %s", path, error)

    async def fetch(self, url: str, api_key: str | None) -> None:
        """From another index server or a gateway's admin port; newer than what a file says."""
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        timeout = aiohttp.ClientTimeout(total=SNAPSHOT_FETCH_SECONDS)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.get(url.rstrip("/") + "/snapshot", headers=headers) as answer,
            ):
                if answer.status != 200:
                    raise SnapshotError(f"it answered {answer.status}")
                self._note(url, await _bounded(answer.content))
        except (aiohttp.ClientError, TimeoutError, OSError, SnapshotError, ValueError) as error:
            _logger.warning("no warm start from %s: %s", url, str(error) or type(error).__name__)

    def take(self, name: str) -> PublisherSnapshot | None:
        return self._snapshots.pop(name, None)

    def _note(self, source: str, data: bytes) -> None:
        snapshots = read_snapshot(data)
        self._snapshots |= snapshots
        asyncio.get_running_loop().call_later(SNAPSHOT_WAIT_SECONDS, self._forget, snapshots)
        _logger.info("%s knows %d workers; each counts once its engine confirms it", source, len(snapshots))

    def _forget(self, snapshots: dict[str, PublisherSnapshot]) -> None:
        """Those of workers that did not come: they take memory."""
        for name, snapshot in snapshots.items():
            if self._snapshots.get(name) is snapshot:
                del self._snapshots[name]


async def _bounded(stream: aiohttp.StreamReader) -> bytes:
    data = bytearray()
    async for piece in stream.iter_any():
        data += piece
        if len(data) > SNAPSHOT_FETCH_BYTES:
            raise SnapshotError(f"it is larger than {SNAPSHOT_FETCH_BYTES} bytes")
    return bytes(data)


class SnapshotFile:
    """Written anew at intervals, piece by piece between other work, and in one go at the end. The file of
    that name is always a whole one: another takes its place when it is complete."""

    def __init__(self, path: str, pieces: Callable[[], Iterator[bytes]], interval_seconds: float) -> None:
        self._path = path
        self._pieces = pieces
        self._interval_seconds = interval_seconds
        self._next: asyncio.TimerHandle | None = None
        self._file: BinaryIO | None = None

    def start(self) -> None:
        self._next = asyncio.get_running_loop().call_later(self._interval_seconds, self._begin)

    def stop(self) -> None:
        """Writes it a last time."""
        if self._next is not None:
            self._next.cancel()
        self._close()
        try:
            with open(self._unfinished, "wb") as file:
                file.writelines(self._pieces())
            os.replace(self._unfinished, self._path)
        except OSError as error:
            self._tell(error)

    @property
    def _unfinished(self) -> str:
        return f"{self._path}.{os.getpid()}.tmp"

    def _begin(self) -> None:
        try:
            self._file = open(self._unfinished, "wb")  # noqa: SIM115 -- open from step to step
        except OSError as error:
            self._tell(error)
            self.start()
        else:
            self._write(self._pieces())

    def _write(self, pieces: Iterator[bytes]) -> None:
        """The next piece, by a thread: a disk may stall."""
        if (piece := next(pieces, None)) is None:
            self._finish()
            return
        assert self._file is not None
        writing = asyncio.get_running_loop().run_in_executor(None, self._file.write, piece)
        writing.add_done_callback(partial(self._written, pieces))

    def _written(self, pieces: Iterator[bytes], writing: asyncio.Future[int]) -> None:
        if writing.cancelled() or self._file is None:
            return  # stopped meanwhile
        error = writing.exception()
        if error is None:
            self._write(pieces)
            return
        self._tell(error)
        self._close()
        self.start()

    def _finish(self) -> None:
        try:
            self._close()
            os.replace(self._unfinished, self._path)
        except OSError as error:
            self._tell(error)
        self.start()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _tell(self, error: BaseException) -> None:
        reason = getattr(error, "strerror", None) or error
        _logger.warning("can't write the snapshot %s: %s", self._path, reason)
