"""Waiting for conditions, never for time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_SECONDS = 0.005


async def eventually(condition: Callable[[], T], *, within: float = 10.0, what: str = "") -> T:
    """The first truthy value of `condition()`; fails with `what` when none comes in time."""
    deadline = asyncio.get_running_loop().time() + within
    while not (value := condition()):
        assert asyncio.get_running_loop().time() < deadline, f"never came true: {what or condition}"
        await asyncio.sleep(POLL_SECONDS)
    return value
