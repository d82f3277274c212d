"""Where a prompt is computed: the rule, at its edges."""

import pytest

from router.core.disagg import DisaggRules, Facts, Mode, Reason, decide, forced


def verdict(prompt, cached=0.0, *, facts=None, **rules):
    return decide(DisaggRules(**rules), Facts(prompt_tokens=prompt, cached_tokens=cached, **(facts or {})))


@pytest.mark.parametrize(
    ("prompt", "cached", "is_remote", "reason"),
    [
        # effective input of 2047 and 2048 tokens, of a prompt long enough that the ratio says local
        (10_000, 7_953, False, Reason.WELL_CACHED),
        (10_000, 7_952, True, Reason.LONG_PROMPT),
        # ratio 0.699, 0.7 and 0.701
        (1_000, 301, False, Reason.WELL_CACHED),
        (1_000, 300, True, Reason.LITTLE_CACHED),
        (1_000, 299, True, Reason.LITTLE_CACHED),
        # short, but nothing of it is cached: not short enough, but cached enough is asked for
        (16, 0, True, Reason.LITTLE_CACHED),
        (16, 16, False, Reason.WELL_CACHED),
        (100_000, 100_000, False, Reason.WELL_CACHED),
        (100_000, 0, True, Reason.LONG_PROMPT),
        # what is cached is weighed by tier and not rounded to blocks
        (1_000, 300.25, False, Reason.WELL_CACHED),
        # more is held than the prompt has, by an estimate
        (10, 16, False, Reason.WELL_CACHED),
        (0, 0, False, Reason.NO_PROMPT),
    ],
)
def test_local_needs_both_tests_and_both_are_strict(prompt, cached, is_remote, reason):
    found = verdict(prompt, cached)
    assert (found.is_remote, found.reason) == (is_remote, reason)
    assert found.effective_tokens == max(0, prompt - cached)


@pytest.mark.parametrize("tenths", range(1, 10))
def test_a_prompt_at_the_ratio_is_not_below_it_whatever_floats_say(tenths):
    for prompt in range(10, 3_000, 10):
        effective = prompt * tenths // 10
        at = verdict(prompt, prompt - effective, ratio=tenths / 10, min_tokens=10**6)
        assert at.is_remote
        below = verdict(prompt, prompt - effective + 1, ratio=tenths / 10, min_tokens=10**6)
        assert not below.is_remote


def test_the_modes_without_conditions_ask_nothing():
    assert verdict(16, 16, mode=Mode.ALWAYS).reason == Reason.ALWAYS
    assert verdict(10**6, 0, mode=Mode.NEVER).reason == Reason.NEVER
    assert verdict(16, 16, mode=Mode.ALWAYS).is_remote
    assert not verdict(10**6, 0, mode=Mode.NEVER).is_remote


@pytest.mark.parametrize(("backlog", "is_remote"), [(999, True), (1_000, False)])
def test_a_prefill_pool_that_is_busy_everywhere_is_left_alone(backlog, is_remote):
    found = verdict(5_000, facts={"prefill_backlog_tokens": backlog}, prefill_busy_tokens=1_000)
    assert found.is_remote is is_remote
    assert is_remote or found.reason == Reason.PREFILL_BUSY


@pytest.mark.parametrize(("usage", "is_remote"), [(0.8, False), (0.81, True), (None, True)])
def test_a_decode_worker_above_its_limit_computes_no_prompt(usage, is_remote):
    found = verdict(1_000, 990, facts={"decode_usage": usage}, decode_usage_max=0.8)
    assert found.is_remote is is_remote
    assert found.reason == (Reason.DECODE_FULL if is_remote else Reason.WELL_CACHED)


def test_the_limit_of_the_decode_worker_goes_before_a_busy_prefill_pool():
    found = verdict(
        5_000,
        facts={"decode_usage": 0.9, "prefill_backlog_tokens": 10**6},
        decode_usage_max=0.8,
        prefill_busy_tokens=1,
    )
    assert found.reason == Reason.DECODE_FULL


@pytest.mark.parametrize(("local", "remote", "is_remote"), [(100, 99, True), (100, 100, False)])
def test_auto_takes_the_quicker_way(local, remote, is_remote):
    times = {"local": local, "remote": remote}
    found = verdict(16, 16, mode=Mode.AUTO, facts={"times_ms": times})
    assert found.is_remote is is_remote
    assert found.times_ms == times
    assert found.reason == (Reason.FASTER_REMOTE if is_remote else Reason.FASTER_LOCAL)


def test_auto_without_predicted_times_goes_by_length():
    assert verdict(5_000, mode=Mode.AUTO).reason == Reason.LONG_PROMPT


def test_a_forced_verdict_says_what_it_would_have_cost():
    facts = Facts(prompt_tokens=100, cached_tokens=60)
    found = forced(DisaggRules(), facts, is_remote=False, reason=Reason.RETRIED)
    assert (found.is_remote, found.reason, found.effective_tokens) == (False, Reason.RETRIED, 40)
    assert found.mode == Mode.CONDITIONAL
