"""The budget of bytes, and who leaves first."""

import pytest

from router.tokens.local.limits import SEGMENT_ENTRY_BYTES
from router.tokens.local.segments import SegmentCache


def test_texts_are_found_by_content_and_space():
    cache = SegmentCache()
    cache.put(0, "text", b"1234")
    assert cache.get(0, "te" + "xt") == b"1234"
    assert cache.get(1, "text") is None
    assert cache.get(0, "other") is None


def test_the_least_recently_used_leave_first():
    cache = SegmentCache(3 * (SEGMENT_ENTRY_BYTES + 4))
    for text in "abc":
        cache.put(0, text, b"1234")
    cache.get(0, "a")
    cache.put(0, "d", b"1234")
    assert [cache.get(0, text) is not None for text in "abcd"] == [True, False, True, True]
    assert cache.num_bytes == 3 * (SEGMENT_ENTRY_BYTES + 4)


def test_what_exceeds_the_budget_leaves_at_once():
    cache = SegmentCache(1000)
    cache.put(0, "a", b"1234")
    cache.put(0, "b", bytes(1000))
    assert (len(cache), cache.num_bytes) == (0, 0)


def test_a_text_put_twice_counts_once():
    cache = SegmentCache()
    cache.put(0, "a", b"1234")
    cache.put(0, "a", b"12345678")
    assert (len(cache), cache.num_bytes) == (1, SEGMENT_ENTRY_BYTES + 8)


def test_a_lone_surrogate_is_no_text():
    with pytest.raises(UnicodeEncodeError):
        SegmentCache().get(0, "\ud800")
