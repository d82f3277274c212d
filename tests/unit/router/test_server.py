"""The server's accounting and the limits that it is given."""

from __future__ import annotations

import resource

import pytest

from router.config import Settings
from router.errors import Overloaded
from router.limits import DESCRIPTORS_SPARE, RelayLimits
from router.request import Request
from router.server import Server, default_max_connections, raise_descriptor_limit


def server(**limits: float) -> Server:
    return Server(handler=None, limits=RelayLimits(**limits), clock=lambda: 0.0)


def test_held_bytes_are_bounded_and_given_back_once() -> None:
    bounded = server(collected_bytes=10)
    request = Request(None, 0.0)
    request.num_bytes = 10
    bounded.hold(10)
    with pytest.raises(Overloaded):
        bounded.hold(1)
    request.num_bytes = 11
    for _ in range(2):
        bounded.release(request)
        assert bounded.collected_bytes == 0


def test_descriptors_decide_how_many_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(1024, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda which, pair: limits.append(pair))
    assert default_max_connections() == (1024 - DESCRIPTORS_SPARE) // 2
    raise_descriptor_limit()
    assert default_max_connections() == (4096 - DESCRIPTORS_SPARE) // 2
    limits.append((64, 64))
    assert default_max_connections() == 1


def test_limits_come_from_the_settings() -> None:
    settings = Settings(
        max_body=1, connect_timeout=2, first_byte_timeout=3, idle_timeout=4, request_timeout=5
    )
    limits = RelayLimits.from_settings(settings)
    assert (limits.body_bytes, limits.connect_seconds, limits.first_byte_seconds) == (1, 2, 3)
    assert (limits.idle_seconds, limits.request_seconds) == (4, 5)
    assert RelayLimits.from_settings(Settings()) == RelayLimits()


def test_deadlines_are_looked_at_often_enough_for_the_shortest() -> None:
    assert RelayLimits().check_seconds == 1.0
    assert RelayLimits(idle_seconds=0.2).check_seconds <= 0.05
