"""What holds for every test: coroutines run on the event loop that production uses."""

from __future__ import annotations

import pytest
import uvloop


@pytest.fixture(scope="session")
def event_loop_policy() -> uvloop.EventLoopPolicy:
    """For pytest-asyncio. uvloop and asyncio's own loop differ in transports, buffers and error texts."""
    return uvloop.EventLoopPolicy()
