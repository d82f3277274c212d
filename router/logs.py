"""How the gateway logs: one line each, messages to standard error, the access log to standard output.

What is logged belongs to who logs it.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import TextIO

ACCESS_LOGGER = "kvgate.access"

_LINE = "%(asctime)s.%(msecs)03dZ %(levelname)-7s %(name)s: %(message)s"
_TIME = "%Y-%m-%dT%H:%M:%S"

_CHATTY = ("aiohttp.access", "asyncio")
"""Loggers of libraries that say at INFO what only a debugger wants."""


def set_up_logging(
    level: str,
    access_log: str | None = None,
    *,
    messages: TextIO | None = None,
    accesses: TextIO | None = None,
) -> None:
    """`level` is debug, info, warning or error; `access_log` the form of its lines, text or json. Times are
    UTC. Replaces whatever was set up before."""
    root = _set_handler("", messages or sys.stderr, _OneLine(_LINE, _TIME))
    root.setLevel(level.upper())
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.DEBUG if level == "debug" else logging.WARNING)
    formatter = _JsonLine(None, _TIME) if access_log == "json" else _OneLine(_LINE, _TIME)
    access = _set_handler(ACCESS_LOGGER, accesses or sys.stdout, formatter)
    access.setLevel(logging.INFO)  # who asks for it gets it, however quiet the rest is
    access.propagate = False


def _set_handler(name: str, stream: TextIO, formatter: logging.Formatter) -> logging.Logger:
    formatter.converter = time.gmtime
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    logger = logging.getLogger(name)
    logger.handlers[:] = [handler]
    return logger


class _OneLine(logging.Formatter):
    """Control characters of a message are escaped: text from outside can't forge a line. Tracebacks, which
    are our own, keep their lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        return line if line.isprintable() else "".join(map(_visible, line))


class _JsonLine(logging.Formatter):
    """A message that is a JSON object, with the time put in front."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = f"{self.formatTime(record, self.datefmt)}.{int(record.msecs):03d}Z"
        return f'{{"time":"{stamp}",{record.getMessage().removeprefix("{")}'


def _visible(character: str) -> str:
    return character if character.isprintable() else ascii(character)[1:-1]
