"""Standard output that remembers that it could not be written: a full disk, a reader that left."""

from __future__ import annotations

import os
from typing import TextIO


class StandardOutput:
    """`stream` as commands print to it. argparse keeps a failure to itself, and what is buffered fails after
    the command: so it is noted here."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.failure: OSError | None = None

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self.failure = error
            raise

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self.failure = error
            raise

    def is_written(self) -> bool:
        """Whether all that was printed is out."""
        try:
            self._stream.flush()
        except OSError as error:
            self.failure = error
        return self.failure is None

    def give_up(self) -> str:
        """What the system says of it. The rest goes nowhere, lest the interpreter complain once more at its
        end."""
        assert self.failure is not None
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        return self.failure.strerror or str(self.failure)
