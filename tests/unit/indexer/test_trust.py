"""The table of trust, and how much evidence turns a verdict."""

from __future__ import annotations

import pytest

from indexer.limits import AGREEMENTS_TO_RAISE, DISAGREEMENTS_TO_LOWER
from indexer.trust import RULES, Evidence, Sign, Trust, TrustLevel, Verdict, judge


@pytest.mark.parametrize(
    ("sign", "level"),
    [
        (Sign.SILENT, TrustLevel.PREDICTED),
        (Sign.LAYOUT, TrustLevel.DEGRADED),
        (Sign.BLOCKS, TrustLevel.DEGRADED),
        (Sign.STREAM, TrustLevel.RECOVERING),
    ],
)
def test_each_sign_has_its_level_and_gives_its_reason(sign: Sign, level: TrustLevel) -> None:
    assert judge({sign: "why"}, "history") == Trust(level, "why")


def test_every_sign_has_a_rule_that_says_what_lowers_and_what_raises() -> None:
    assert set(RULES) == set(Sign)
    assert all(rule.falls and rule.rises for rule in RULES.values())


def test_without_a_sign_a_worker_is_exact_and_says_what_it_lacks() -> None:
    assert judge({}) == Trust(TrustLevel.EXACT)
    absent = dict.fromkeys(Sign, "")
    assert judge(absent, "no replay socket") == Trust(TrustLevel.EXACT, "no replay socket")


def test_the_gravest_sign_decides() -> None:
    signs = {sign: sign.value for sign in reversed(Sign)}
    for sign in list(Sign):
        assert judge(signs).reason == sign.value
        del signs[sign]
    assert judge(signs).level is TrustLevel.EXACT


def verdict_after(observations: str, **thresholds: int) -> Verdict:
    """`+` agrees, `-` differs."""
    evidence = Evidence(**thresholds)
    for observation in observations:
        evidence.note(observation == "+")
    return evidence.verdict


ENOUGH = "-" * DISAGREEMENTS_TO_LOWER


@pytest.mark.parametrize(
    ("observations", "verdict"),
    [
        ("", Verdict.OPEN),
        (ENOUGH[1:], Verdict.OPEN),
        (ENOUGH, Verdict.DIFFERS),
        ("+", Verdict.AGREES),
        (f"{ENOUGH[1:]}+{ENOUGH[1:]}", Verdict.AGREES),
        (f"+{ENOUGH}", Verdict.DIFFERS),
        (ENOUGH + "+" * (AGREEMENTS_TO_RAISE - 1), Verdict.DIFFERS),
        (ENOUGH + "+" * AGREEMENTS_TO_RAISE, Verdict.AGREES),
        (f"{ENOUGH}+-+", Verdict.DIFFERS),
    ],
)
def test_a_single_odd_observation_turns_no_verdict(observations: str, verdict: Verdict) -> None:
    assert verdict_after(observations) is verdict


@pytest.mark.parametrize(
    ("observations", "verdict"), [("-", Verdict.DIFFERS), ("-+", Verdict.AGREES), ("+-", Verdict.DIFFERS)]
)
def test_what_is_not_left_to_chance_turns_at_once(observations: str, verdict: Verdict) -> None:
    assert verdict_after(observations, to_lower=1, to_raise=1) is verdict


def test_it_is_settled_while_nothing_speaks_against_it() -> None:
    evidence = Evidence()
    settled = []
    for agrees in [True] * AGREEMENTS_TO_RAISE + [False] + [True] * AGREEMENTS_TO_RAISE:
        evidence.note(agrees)
        settled.append(evidence.is_settled)
    assert settled[AGREEMENTS_TO_RAISE - 1]
    assert not settled[AGREEMENTS_TO_RAISE]
    assert settled[-1]
    assert (evidence.num_agreed, evidence.num_differed) == (2 * AGREEMENTS_TO_RAISE, 1)
