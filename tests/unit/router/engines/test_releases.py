"""Releases compared by their numbers."""

import pytest

from router.engines.releases import is_from


@pytest.mark.parametrize(
    ("version", "is_new"),
    [
        ("0.12.0", True), ("0.12", True), ("0.12.0rc1", True), ("0.12.1.post2", True), ("0.33.0", True),
        ("1.0.0", True), ("v0.12.0", True), ("0.12.0+cpu", True),
        ("0.11.2", False), ("0.9.2", False), ("0.1.dev1+g0", False), ("", False), ("main", False),
    ],
)  # fmt: skip
def test_numbers_are_compared_and_names_are_not_new(version, is_new):
    assert is_from(version, (0, 12, 0)) is is_new
