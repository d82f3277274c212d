"""Background tasks: named, strongly referenced until they end, and never failing in silence."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_logger = logging.getLogger("kvgate.tasks")

_running: set[asyncio.Task[Any]] = set()
"""The event loop holds tasks weakly: without this one may vanish in the middle."""


def start_task(coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """Run `coroutine` on the running loop. An exception that ends it is logged with its traceback; the task
    can still be awaited."""
    task = asyncio.get_running_loop().create_task(coroutine, name=name)
    _running.add(task)
    task.add_done_callback(_ended)
    return task


def _ended(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if task.cancelled():
        return
    if (error := task.exception()) is not None:
        _logger.error("task %s failed", task.get_name(), exc_info=error)
