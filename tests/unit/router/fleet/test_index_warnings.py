"""One line when an index is not exact and stays so, one when it is again."""

from __future__ import annotations

import logging

import pytest

from indexer.parity import Check, Outcome, ParityState, Subject
from indexer.sequencer import NO_CONTACT
from indexer.trust import Trust, TrustLevel
from router.fleet.index_warnings import IndexWarnings
from router.fleet.limits import WARNINGS_KEPT

EXACT = Trust(TrustLevel.EXACT)
GAP = Trust(TrustLevel.RECOVERING, "messages 3 to 4 were missed")


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, "kvgate.fleet")
    return lambda: [(record.levelname, record.getMessage()) for record in caplog.records]


def differing(note: str) -> ParityState:
    state = ParityState()
    state.note(Check.TOKENS, Subject("m"), Outcome.DIFFERS, note)
    return state


def look(warnings: IndexWarnings, *seen: tuple[Trust, ParityState]) -> None:
    for trust, parity in seen:
        warnings.look("w", trust, parity, "tcp://there")


def test_a_doubt_that_passes_is_not_worth_a_line(lines) -> None:
    look(IndexWarnings(), (EXACT, ParityState()), (GAP, ParityState()), (EXACT, ParityState()))
    assert lines() == []


def test_a_doubt_that_stays_is_told_once_and_so_is_its_end(lines) -> None:
    look(IndexWarnings(), *[(GAP, ParityState())] * 5, *[(EXACT, ParityState())] * 3)
    assert lines() == [
        ("WARNING", "worker w: its index is recovering: messages 3 to 4 were missed"),
        ("INFO", "worker w: its index is exact again"),
    ]


def test_a_publisher_that_was_never_heard_is_told_with_its_place(lines) -> None:
    look(IndexWarnings(), *[(Trust(TrustLevel.RECOVERING, NO_CONTACT), ParityState())] * 3)
    [(_, line)] = lines()
    assert line == (
        "worker w: its index is recovering: no contact with the event socket yet "
        "(tcp://there: does the engine publish KV events there?)"
    )


def test_a_difference_is_told_at_once_and_once_more_when_it_comes_to_degrade(lines) -> None:
    parity = differing("its prompt starts with token 1")
    degraded = Trust(TrustLevel.DEGRADED, "its prompt starts with token 1")
    look(IndexWarnings(), (EXACT, parity), (degraded, parity), (degraded, parity), (EXACT, ParityState()))
    assert lines() == [
        ("WARNING", "worker w: its prompt starts with token 1"),
        ("WARNING", "worker w: its index is degraded: its prompt starts with token 1"),
        ("INFO", "worker w: its index is exact again"),
    ]


def test_a_degraded_index_is_told_with_its_cause(lines) -> None:
    look(IndexWarnings(), (Trust(TrustLevel.DEGRADED, "cause"), differing("cause")))
    assert lines() == [("WARNING", "worker w: its index is degraded: cause")]


def test_a_fall_is_told_with_its_reason_behind_another_difference(lines) -> None:
    parity, degraded = differing("its tokens differ"), Trust(TrustLevel.DEGRADED, "its blocks do not come")
    look(IndexWarnings(), (EXACT, parity), *[(degraded, parity)] * 4)
    assert lines() == [
        ("WARNING", "worker w: its tokens differ"),
        ("WARNING", "worker w: its index is degraded: its blocks do not come"),
    ]


def test_another_cause_is_another_line_up_to_a_bound(lines) -> None:
    warnings = IndexWarnings()
    for number in range(WARNINGS_KEPT + 5):
        look(warnings, (EXACT, differing(f"cause {number}")))
    assert len(lines()) == WARNINGS_KEPT
