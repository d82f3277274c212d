"""What holds for every test: coroutines run on the event loop that production uses."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable

import uvloop


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], AbstractEventLoop]]:
    """uvloop and asyncio's own loop differ in transports, buffers and the texts of errors."""
    return {"uvloop": uvloop.new_event_loop}
