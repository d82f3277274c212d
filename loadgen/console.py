"""What the load tools print: lines, and a bar that is drawn anew on a terminal and sparse elsewhere."""

from __future__ import annotations

import asyncio
import sys
from typing import TextIO

from loadgen.report import progress_line
from loadgen.results import RequestResult

PLAIN_STEPS = 4
"""Progress lines of a run where nobody watches: in a log file every redraw would be a line."""


class Console:
    def __init__(self, stream: TextIO | None = None) -> None:
        """Standard output unless told otherwise."""
        self._stream = stream or sys.stdout
        self._redraws = self._stream.isatty()
        self._drawn = 0

    def line(self, text: str = "") -> None:
        self._write("\r" + " " * self._drawn + "\r" if self._drawn else "")
        self._drawn = 0
        self._write(text + "\n")

    def progress(self, text: str, done: int, total: int) -> None:
        """Shows `text`: always on a terminal, else when another quarter is done."""
        if self._redraws:
            self._write("\r" + text.ljust(self._drawn))
            self._drawn = len(text)
        elif done * PLAIN_STEPS // total > (done - 1) * PLAIN_STEPS // total:
            self.line(text)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class ProgressBar:
    """Called with each result of a load."""

    def __init__(self, console: Console, label: str, total: int) -> None:
        self._console = console
        self._label = label
        self._total = total
        self._done = 0
        self._clock = asyncio.get_running_loop().time
        self._started = self._clock()

    def __call__(self, _result: RequestResult) -> None:
        self._done += 1
        text = progress_line(self._label, self._done, self._total, self._clock() - self._started)
        self._console.progress(text, self._done, self._total)
