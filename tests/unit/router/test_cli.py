"""The `kvgate` command: which subcommand runs, and what is said when none can."""

import subprocess
import sys
import types

import pytest

from router import cli


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
    assert ran.stdout.splitlines()[1] == "['router.cli']"


def test_python_m_router_is_the_command():
    ran = subprocess.run(
        [sys.executable, "-m", "router", "version"], capture_output=True, text=True, check=True
    )
    assert ran.stdout == f"kvgate {cli.installed_version()}\n"
