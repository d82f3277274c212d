import pytest

from router.core.retries import may_retry

FAILED = {"attempt": 0, "max_retries": 2, "retryable": True, "begun": False}


def test_a_failure_before_the_answer_began_is_retried_so_many_times():
    assert [may_retry(**FAILED | {"attempt": attempt}) for attempt in range(4)] == [True, True, False, False]


@pytest.mark.parametrize(
    "reason", [{"retryable": False}, {"begun": True}, {"client_gone": True}, {"max_retries": 0}]
)
def test_any_of_these_forbids_it(reason):
    assert not may_retry(**FAILED | reason)
