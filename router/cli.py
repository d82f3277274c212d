"""The `kvgate` command: a table of subcommands, each loaded when it is asked for.

What a subcommand does, and its flags, belong to the module that it names. Loading late keeps `kvgate version`
quick and lets the gateway run where the load tools' needs are not installed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TextIO, cast

from router.standard_output import StandardOutput

USAGE_ERROR = 2
"""Exit code for a wrong command line or configuration, as of argparse and most shells' tools."""

_OWN_PACKAGES = ("router", "indexer", "policies", "loadgen")


@dataclass(frozen=True, slots=True)
class Command:
    """`target` is "module:function"; the function takes the arguments and returns an exit code or None."""

    target: str
    help: str


COMMANDS: dict[str, Command] = {
    "serve": Command("router.app:main", "run the gateway"),
    "index": Command("router.index_command:main", "run the index alone: who holds which prompt, over HTTP"),
    "mock": Command("loadgen.mock_worker:main", "run a fleet of mock workers"),
    "demo": Command("loadgen.demo:main", "compare policies on mock workers, gateway and all"),
    "load": Command("loadgen.load:main", "send a workload to a running gateway"),
    "sim": Command("loadgen.sim.command:main", "compare policies on a trace, in virtual time"),
    "tokens": Command("router.tokens_command:main", "show the tokens of a body, and compare a worker's"),
    "version": Command("router.cli:print_version", "print the version"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = arguments[0] if arguments else "--help"
    if sys.stdout is None:  # its descriptor was closed by who started us
        return _command(name, arguments)
    output = StandardOutput(sys.stdout)
    with redirect_stdout(cast(TextIO, output)):
        try:
            code = _command(name, arguments)
        except SystemExit:
            if output.is_written():
                raise
        except OSError as error:
            if error is not output.failure:
                raise
        else:
            if output.is_written():
                return code
    return _fail(f"kvgate {name}: can't write to standard output: {output.give_up()}")


def _command(name: str, arguments: list[str]) -> int:
    if name in ("-h", "--help", "help"):
        _print(usage())
        return 0
    if name == "--version":
        return print_version([])
    if name not in COMMANDS:
        return _fail(f"kvgate: {_unknown(name)}\n\n{usage()}")
    return _run(name, arguments[1:])


def print_version(argv: Sequence[str]) -> int:
    _print(f"kvgate {installed_version()}")
    return 0


def installed_version() -> str:
    """Of the installed distribution; "unknown" when run from a source tree that is not installed."""
    try:
        return version("kvgate")
    except PackageNotFoundError:
        return "unknown"


def usage() -> str:
    width = max(map(len, COMMANDS))
    rows = [f"  {name:<{width}}  {command.help}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: kvgate COMMAND [OPTIONS]",
            "",
            "A KV-cache-aware gateway in front of vLLM and SGLang workers.",
            "",
            "commands:",
            *rows,
            "",
            "kvgate COMMAND --help shows the options of a command; kvgate --version the version.",
        ]
    )


def _run(name: str, arguments: list[str]) -> int:
    try:
        run = _load(COMMANDS[name].target)
    except ModuleNotFoundError as error:
        return _fail(_missing(name, error))
    return run(arguments) or 0


def _load(target: str) -> Callable[[Sequence[str]], int | None]:
    module, _, function = target.partition(":")
    loaded: Callable[[Sequence[str]], int | None] = getattr(import_module(module), function)
    return loaded


def _missing(name: str, error: ModuleNotFoundError) -> str:
    """Names what to install; a module of our own that is missing is an incomplete installation."""
    module = error.name or str(error)
    if module.partition(".")[0] in _OWN_PACKAGES:
        return f"kvgate {name}: {module} is not part of this installation; pip install kvgate"
    return f"kvgate {name} needs the Python package of the module {module}; pip install kvgate brings it"


def _unknown(name: str) -> str:
    near = get_close_matches(name, COMMANDS, n=1)
    return f"unknown command {name!r}" + (f" (did you mean {near[0]}?)" if near else "")


def _fail(message: str) -> int:
    sys.stderr.write(message + "\n")
    return USAGE_ERROR


def _print(message: str) -> None:
    sys.stdout.write(message + "\n")
