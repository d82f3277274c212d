"""End-to-end tests run on uvloop, as the gateway does: its transports differ from asyncio's own in what they
report and when."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import uvloop


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, Callable]:
    return {"uvloop": uvloop.new_event_loop}
