"""How the gateway logs: one line of text each, to standard error. What is logged belongs to who logs it."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

LINE = "%(asctime)s.%(msecs)03d %(levelname)-7s %(name)s: %(message)s"
TIME = "%Y-%m-%dT%H:%M:%S"

_CHATTY = ("aiohttp.access", "asyncio")
"""Loggers of libraries that say at INFO what only a debugger wants."""


def set_up_logging(level: str, stream: TextIO | None = None) -> None:
    """`level` is one of debug, info, warning, error. Replaces whatever was set up before."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_OneLine(LINE, TIME))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.DEBUG if level == "debug" else logging.WARNING)


class _OneLine(logging.Formatter):
    """Control characters of a message are escaped: text from outside can't forge a line. Tracebacks, which
    are our own, keep their lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        return line if line.isprintable() else "".join(map(_visible, line))


def _visible(character: str) -> str:
    return character if character.isprintable() else ascii(character)[1:-1]
