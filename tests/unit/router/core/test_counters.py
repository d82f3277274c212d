"""An engine's totals speak of a request only when nothing else can have moved them."""

from __future__ import annotations

import pytest

from indexer.blocks import Unit
from router.core.counters import CacheTotals, LoneRequests
from router.core.loads import Booking
from router.core.usage import Expectation


def booking(name: str = "r", num_tokens: int = 64) -> Booking:
    return Booking(
        request_id=name,
        attempt=0,
        slot=0,
        unit=Unit.TOKENS,
        chain=(),
        num_unshared_blocks=0,
        prefill_tokens=0,
        expectation=Expectation(num_tokens=num_tokens),
    )


def read_at_first(num_active: int = 0) -> LoneRequests:
    lone = LoneRequests()
    assert lone.read(CacheTotals(1000, 100), num_active=num_active, asked_at=1.0) is None
    return lone


def test_a_request_that_was_alone_is_spoken_of() -> None:
    lone, request = read_at_first(), booking()
    lone.booked(request)
    lone.computed(request, now=2.0)
    assert lone.read(CacheTotals(1064, 148), num_active=0, asked_at=3.0) == (request, 48)
    assert lone.read(CacheTotals(1064, 148), num_active=0, asked_at=4.0) is None, "once"


@pytest.mark.parametrize("queries", [1000, 1063, 1128])
def test_others_that_moved_the_totals_show(queries: int) -> None:
    lone, request = read_at_first(), booking()
    lone.booked(request)
    lone.computed(request, now=2.0)
    assert lone.read(CacheTotals(queries, 148), num_active=0, asked_at=3.0) is None


def test_two_requests_say_nothing_and_neither_does_one_that_was_there_before() -> None:
    for num_active, names in ((0, ("a", "b")), (1, ("a",))):
        lone = read_at_first(num_active)
        for name in names:
            request = booking(name)
            lone.booked(request)
            lone.computed(request, now=2.0)
        assert lone.read(CacheTotals(1064, 148), num_active=0, asked_at=3.0) is None


def test_one_that_goes_on_or_ended_while_the_totals_were_asked_for_says_nothing() -> None:
    for ended_at in (None, 3.5):
        lone, request = read_at_first(), booking()
        lone.booked(request)
        if ended_at is not None:
            lone.computed(request, now=ended_at)
        assert lone.read(CacheTotals(1064, 148), num_active=0, asked_at=3.0) is None


def test_the_first_reading_says_nothing() -> None:
    lone, request = LoneRequests(), booking()
    lone.booked(request)
    lone.computed(request, now=0.5)
    assert lone.read(CacheTotals(64, 48), num_active=0, asked_at=1.0) is None
