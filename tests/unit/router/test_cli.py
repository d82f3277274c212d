"""The `kvgate` command: which subcommand runs, and what is said when none can."""

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from router import cli
from tests.support.tokenizers import TINY


@pytest.fixture
def command(monkeypatch):
    """A module with a `main` that notes its arguments, as the command `serve`."""
    seen = []
    module = types.ModuleType("fake_command")

    def main(argv):
        seen.append(list(argv))
        return module.result

    module.main, module.result, module.seen = main, None, seen
    monkeypatch.setitem(sys.modules, "fake_command", module)
    monkeypatch.setitem(cli.COMMANDS, "serve", cli.Command("fake_command:main", "help"))
    return module


def test_a_subcommand_gets_the_arguments_behind_it(command):
    assert cli.main(["serve", "--port", "1"]) == 0
    assert command.seen == [["--port", "1"]]


def test_its_exit_code_is_ours(command):
    command.result = 3
    assert cli.main(["serve"]) == 3


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"], ["help"]])
def test_help_lists_every_command(argv, capsys):
    assert cli.main(argv) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in cli.COMMANDS)


@pytest.mark.parametrize("argv", [["version"], ["--version"]])
def test_version(argv, capsys):
    assert cli.main(argv) == 0
    assert capsys.readouterr().out == f"kvgate {cli.installed_version()}\n"


def test_an_unknown_command_is_refused_with_a_suggestion(capsys):
    assert cli.main(["serv"]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("kvgate: unknown command 'serv' (did you mean serve?)\n")
    assert "usage: kvgate COMMAND" in shown


@pytest.mark.parametrize(
    ("missing", "part"),
    [
        ("loadgen.nowhere", "loadgen.nowhere is not part of this installation"),
        ("nowhere", "needs the Python package of the module nowhere"),
    ],
)
def test_a_missing_module_is_named(monkeypatch, capsys, missing, part):
    monkeypatch.setitem(cli.COMMANDS, "load", cli.Command(f"{missing}:main", "help"))
    assert cli.main(["load"]) == 2
    assert part in capsys.readouterr().err


def test_showing_the_version_loads_no_subcommand():
    code = (
        "import sys; from router.cli import main; main(['version']); "
        "print([name for name in sys.modules if name.startswith(('aiohttp', 'zmq', 'loadgen', 'router.'))])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[1] == "['router.standard_output', 'router.cli']"


def test_python_m_router_is_the_command():
    ran = subprocess.run(
        [sys.executable, "-m", "router", "version"], capture_output=True, text=True, check=True
    )
    assert ran.stdout == f"kvgate {cli.installed_version()}\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "argv", [["version"], ["--help"], ["mock", "--help"], ["tokens", "--tokenizer", TINY]]
)
def test_output_that_cannot_be_written_is_one_line_and_exit_code_2(argv, unbuffered):
    with Path("/dev/full").open("w") as full:
        run = subprocess.run(
            [sys.executable, "-m", "router", *argv],
            input='{"prompt": "a"}', stdout=full, stderr=subprocess.PIPE, text=True, check=False,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )  # fmt: skip
    assert run.stderr == f"kvgate {argv[0]}: can't write to standard output: No space left on device\n"
    assert run.returncode == 2


def test_an_error_of_the_system_elsewhere_is_not_taken_for_one_of_the_output(command):
    def main(argv):
        raise OSError("something else")

    command.main = main
    with pytest.raises(OSError, match="something else"):
        cli.main(["serve"])
