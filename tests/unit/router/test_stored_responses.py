"""Where stored responses lie."""

from __future__ import annotations

import pytest

from router.stored_responses import StoredAt, StoredResponses

PLACE = StoredAt("a:1", "m")


@pytest.mark.parametrize(
    "beginning",
    [
        b'{"id":"resp_1a-B","object":"response"',
        b'{"created_at": 1, "id" : "resp_1a-B"',
        b'event: response.created\ndata: {"type":"response.created","response":{"id":"resp_1a-B"}}\n\n',
    ],
)
def test_response_names_itself(beginning: bytes) -> None:
    stored = StoredResponses()
    stored.note(beginning, PLACE)
    assert stored.find("resp_1a-B") == PLACE


@pytest.mark.parametrize(
    "beginning", [b"", b'{"id":"cmpl-1"}', b'{"id":5}', b" " * 5000 + b'"id":"resp_1a-B"']
)
def test_other_beginnings_name_nothing(beginning: bytes) -> None:
    stored = StoredResponses()
    stored.note(beginning, PLACE)
    assert stored.find("resp_1a-B") is None


def test_oldest_are_forgotten_first() -> None:
    stored = StoredResponses(capacity=2)
    for number in range(3):
        stored.note(b'"id":"resp_%d"' % number, PLACE)
    assert [stored.find(f"resp_{number}") for number in range(3)] == [None, PLACE, PLACE]
