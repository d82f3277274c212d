"""Numbers on the load tools' command lines: what is taken, and what is said of the rest."""

import argparse

import pytest

from loadgen.arguments import above_zero, command_line, whole_number


@pytest.mark.parametrize("text", ["1", "200"])
def test_both_bounds_are_allowed(text):
    assert whole_number(1, 200)(text) == int(text)


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (whole_number(2), "1", "must be at least 2"),
        (whole_number(1, 200), "201", "must be 1 to 200"),
        (whole_number(1, 200), "0", "must be 1 to 200"),
        (above_zero, "0", "must be above 0"),
        (above_zero, "nan", "must be above 0"),
    ],
)
def test_what_is_out_of_bounds_is_told_the_bounds(read, text, message):
    with pytest.raises(argparse.ArgumentTypeError, match=message):
        read(text)


def test_what_is_no_number_ends_with_a_usage_error(capsys):
    parser = command_line("load", "")
    parser.add_argument("--requests", type=whole_number(1))
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(["--requests", "ten"])
    assert ended.value.code == 2
    assert "invalid number value: 'ten'" in capsys.readouterr().err
