"""What holds for every test: the event loop of production, and no verdict that depends on a clock."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable

import uvloop
from hypothesis import settings

# Hypothesis fails examples that take 0.2 s: on a busy machine that says nothing. In CI its own profile
# ("ci": the same examples each time) stays the base.
settings.register_profile("untimed", settings.get_profile(settings.get_current_profile_name()), deadline=None)
settings.load_profile("untimed")


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], AbstractEventLoop]]:
    """uvloop and asyncio's own loop differ in transports, buffers and the texts of errors."""
    return {"uvloop": uvloop.new_event_loop}
