"""A bar is missed only when the whole interval is beyond it, and disturbed rounds do not move the figure."""

from tests.bench.intervals import Interval, ratio_of_medians
from tests.bench.ranking import Row, table
from tests.bench.report import Result


def result(low: float, high: float, bar: float | None, *, more_is_better: bool = False) -> Result:
    figure = Interval((low + high) / 2, low, high)
    return Result(name="n", what="w", unit="u", figure=figure, bar=bar, more_is_better=more_is_better)


def test_an_upper_bar_is_missed_only_by_the_whole_interval() -> None:
    assert not result(0.9, 1.2, bar=1.3).is_missed
    assert not result(1.2, 1.5, bar=1.3).is_missed
    assert result(1.31, 1.5, bar=1.3).is_missed


def test_a_lower_bar_is_missed_only_by_the_whole_interval() -> None:
    assert not result(400, 600, bar=500, more_is_better=True).is_missed
    assert result(400, 499, bar=500, more_is_better=True).is_missed


def test_without_a_bar_nothing_is_missed() -> None:
    assert not result(1, 2, bar=None).is_missed


def test_ratio_survives_a_disturbed_round_and_its_interval_holds_it() -> None:
    theirs = [10.0, 10.1, 9.9, 10.0, 10.2, 9.8, 10.0, 10.1, 9.9, 10.0, 10.0]
    ours = [2 * value for value in theirs]
    ours[3] *= 10  # another process took the core
    interval = ratio_of_medians(ours, theirs)
    assert 1.98 <= interval.low <= interval.value <= interval.high <= 2.06
    assert abs(interval.value - 2) < 0.05


def test_ratio_is_the_same_every_time() -> None:
    ours, theirs = [1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 1.0, 2.0, 1.0, 2.0]
    assert ratio_of_medians(ours, theirs) == ratio_of_medians(ours, theirs)


def row(kvgate: float, **others: float) -> Row:
    """Rounds around these medians."""
    noise = [-0.2, 0.1, 0.0, 0.2, -0.1, 0.1, 0.0]
    medians = {"nginx": 10.0, "kvgate": kvgate, **others}
    return Row(name="r", unit="u", rounds={n: [m + x for x in noise] for n, m in medians.items()})


def test_verdict_goes_by_the_best_of_the_others_and_not_by_nginx() -> None:
    assert row(12, a=13, b=14).verdict == "kvgate is best"
    assert row(12, a=13, b=11).verdict == "b is better by 1"
    assert row(12, a=13, b=12).verdict == "even with b"
    assert row(12).verdict == ""


def test_table_of_gateways_has_a_dash_for_what_did_not_run() -> None:
    text = table([row(12, a=13), row(12)])
    assert text.splitlines()[0].split() == ["row", "unit", "nginx", "kvgate", "a", "verdict"]
    assert text.splitlines()[2].split()[:8] == ["r", "u", "10", "(1.00)", "12", "(1.20)", "13", "(1.30)"]
    assert text.splitlines()[3].split()[-1] == "-"
