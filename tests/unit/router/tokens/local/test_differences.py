"""What is said where two tokenizations part."""

import pytest

from router.tokens.local.differences import first_difference, likely_cause

WORDS = {1: "<s>", 5: "a", 6: "b", 7: "ab", 8: "c", 9: "d"}


@pytest.mark.parametrize(
    ("ours", "theirs", "index", "words"),
    [
        ([5, 6], [5, 6], None, ""),
        ([], [], None, ""),
        ([5, 6], [1, 5, 6], 0, "the worker's prompt starts with token 1 (<s>), ours does not"),
        ([1, 5, 6], [5, 6], 0, "our prompt starts with token 1 (<s>), the worker's does not"),
        ([1, 1, 5], [1, 5], 1, "our prompt has one more token 1 (<s>) at index 1"),
        ([1, 5], [1, 1, 5], 1, "the worker's prompt has one more token 1 (<s>) at index 1"),
        ([5], [5, 6], 1, "the worker's prompt goes on with token 6 (b) where ours ends"),
        ([5, 6], [5], 1, "our prompt goes on with token 6 (b) where the worker's ends"),
        ([5, 6, 8], [7, 8], 0, "the texts are equal but cut into other tokens"),
        ([5, 8], [5, 9], 1, "the texts differ from token 1 on: the worker has another chat template"),
        ([5], [2, 5], 0, "starts with token 2, ours"),
    ],
)
def test_causes(ours, theirs, index, words):
    assert first_difference(ours, theirs) == index
    cause = likely_cause(ours, theirs, lambda token: WORDS.get(token, ""))
    assert words in cause
    assert bool(cause) == (index is not None)
