import pytest

from indexer.blocks import Unit
from router.core.limits import PRIOR_PREFILL_TOKENS_PER_SECOND, RELEASES_SLACK
from router.core.loads import ActiveSequences, Booking
from router.core.prefill import PrefillReleases, PrefillSpeed


def nothing(booking, now):
    """To be called for what is released."""


def book(loads, request_id, prefill=10):
    booking = Booking(
        request_id=request_id,
        attempt=0,
        slot=0,
        unit=Unit.TOKENS,
        chain=(),
        num_unshared_blocks=0,
        prefill_tokens=prefill,
    )
    loads.book(booking)
    return booking


@pytest.fixture
def loads():
    loads = ActiveSequences()
    loads.add_worker(0)
    return loads


def test_speed_begins_with_the_prior():
    assert PrefillSpeed().seconds_for(5000) == 5000 / PRIOR_PREFILL_TOKENS_PER_SECOND


def test_speed_follows_what_is_observed():
    speed = PrefillSpeed()
    for _ in range(100):
        speed.observe(2000, 1.0)
    assert speed.seconds_for(2000) == pytest.approx(1.0, rel=0.05)


def test_a_short_prompt_hardly_moves_the_speed():
    speed = PrefillSpeed()
    for _ in range(100):
        speed.observe(2000, 1.0)
    before = speed.seconds_for(1000)
    speed.observe(1, 0.02)
    assert speed.seconds_for(1000) == pytest.approx(before, rel=0.01)


@pytest.mark.parametrize(("tokens", "seconds"), [(0, 1.0), (100, 0.0), (100, -1.0)])
def test_what_cannot_be_a_speed_is_ignored(tokens, seconds):
    speed = PrefillSpeed()
    speed.observe(tokens, seconds)
    assert speed.seconds_for(1) == 1 / PRIOR_PREFILL_TOKENS_PER_SECOND


def test_what_is_due_is_released_and_the_next_is_named(loads):
    releases = PrefillReleases(loads)
    releases.schedule(book(loads, "late"), 2.0)
    releases.schedule(book(loads, "early"), 1.0)
    assert releases.release_due(0.9, nothing) == 1.0
    assert loads.prefill_tokens(0) == 20
    assert releases.release_due(1.0, nothing) == 2.0
    assert loads.prefill_tokens(0) == 10
    assert releases.release_due(2.5, nothing) is None
    assert loads.prefill_tokens(0) == 0


def test_a_booking_that_has_ended_is_skipped_though_its_id_is_booked_again(loads):
    releases = PrefillReleases(loads)
    old = book(loads, "a")
    releases.schedule(old, 1.0)
    loads.free(old)
    book(loads, "a")
    releases.release_due(5.0, nothing)
    assert loads.prefill_tokens(0) == 10


def test_releases_of_ended_requests_do_not_pile_up(loads):
    releases = PrefillReleases(loads)
    kept = book(loads, "kept")
    releases.schedule(kept, 9.0)
    for number in range(10 * RELEASES_SLACK):
        booking = book(loads, f"r{number}")
        releases.schedule(booking, 10.0)
        loads.free(booking)
    assert len(releases._due) <= RELEASES_SLACK + 4
    releases.release_due(9.0, nothing)
    assert kept.prefill_tokens == 0
