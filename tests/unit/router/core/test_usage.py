import pytest

from router.core.limits import TOKEN_RATIO_RANGE
from router.core.usage import TokenRatio, expected_cached_tokens


@pytest.mark.parametrize(
    ("blocks", "num_tokens", "expected"),
    [
        (0, 100, 0),
        (2, 100, 64),
        (3, 96, 64),  # cached whole: the last token is computed anew, with its block
        (3, 97, 96),
        (9, 97, 96),
        (0, 0, 0),
        (1, 1, 0),
    ],
)
def test_expected_cached_tokens_with_blocks_of_32(blocks, num_tokens, expected):
    assert expected_cached_tokens(blocks, num_tokens, 32) == expected


def test_the_ratio_is_one_until_something_is_observed_and_then_follows_it():
    ratio = TokenRatio()
    assert ratio.value == 1.0
    ratio.observe(300, 200)
    assert ratio.value == 1.5
    for _ in range(500):
        ratio.observe(100, 200)
    assert ratio.value == pytest.approx(0.5, rel=0.01)


def test_one_odd_request_cannot_carry_the_ratio_out_of_range():
    ratio = TokenRatio()
    ratio.observe(1_000_000, 1)
    assert ratio.value == TOKEN_RATIO_RANGE[1]
    ratio = TokenRatio()
    ratio.observe(1, 1_000_000)
    assert ratio.value == TOKEN_RATIO_RANGE[0]


@pytest.mark.parametrize(("real", "estimated"), [(0, 5), (5, 0), (-1, 5)])
def test_what_cannot_be_a_length_is_ignored(real, estimated):
    ratio = TokenRatio()
    ratio.observe(real, estimated)
    assert ratio.value == 1.0
