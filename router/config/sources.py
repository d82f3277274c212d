"""Where settings are given: flags, environment, and a YAML or TOML file, each read into the same shape.

A source yields `Given` values by option name, still raw, together with where each was written; it reports
unknown names. It judges no value.
"""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any

import yaml

from router.config.errors import Mistake, did_you_mean
from router.config.help import OptionsHelp, help_line
from router.config.options import BY_NAME, ENVIRONMENT_PREFIX, OPTIONS, Option, flag_of, variable_of

NOT_SETTINGS = frozenset({"KVGATE_DATA", "KVGATE_INSTALL"})
"""Variables with our prefix that other tools of this project read."""


_SERVICE_LINK = re.compile(r"SERVICE_(HOST|PORT)|PORT_\d+_[A-Z]+")
"""How the variables go on behind our prefix that Kubernetes gives each container for a service called kvgate.
KVGATE_PORT is one of them too, with a URL as its value."""


_NOT_NEEDED = frozenset({"pd_disaggregation", "vllm_pd_disaggregation"})
"""Switches of SGLang's and vLLM's routers for what the workers' roles say here."""


@dataclass(frozen=True, slots=True)
class Given:
    """The raw values that one source gives for an option; more than one only if the option takes many."""

    option: Option
    where: str
    values: tuple[Any, ...]


GivenValues = dict[str, Given]


def from_flags(argv: Sequence[str], mistakes: list[Mistake]) -> GivenValues:
    """Raises SystemExit(0) after `--help`, as argparse does."""
    namespace, unknown = flag_parser().parse_known_args(list(argv))
    mistakes.extend(_unknown_arguments(unknown))
    given: GivenValues = {}
    for option, flag, values in namespace.seen:
        _add_flag(given, option, flag, values, mistakes)
    return given


def from_environment(environ: Mapping[str, str], mistakes: list[Mistake]) -> GivenValues:
    given: GivenValues = {}
    for variable in sorted(environ):
        if variable.startswith(ENVIRONMENT_PREFIX) and not _is_others(variable, environ[variable]):
            name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
            _add(given, name, variable, environ[variable], "environment", mistakes)
    return given


def _is_others(variable: str, value: str) -> bool:
    """Whether a variable with our prefix is none of the gateway's."""
    name = variable.removeprefix(ENVIRONMENT_PREFIX)
    is_link = _SERVICE_LINK.match(name) or (name == "PORT" and "://" in value)
    return variable in NOT_SETTINGS or bool(is_link)


def from_file(path: str, content: str, mistakes: list[Mistake]) -> GivenValues:
    given: GivenValues = {}
    for key, raw in _parse(path, content, mistakes).items():
        _add(given, str(key).replace("-", "_"), f"{path}: {key}", raw, "file", mistakes)
    return given


def flag_parser() -> argparse.ArgumentParser:
    """Every option takes any number of words, so that how many are right is judged with all else."""
    parser = argparse.ArgumentParser(
        prog="kvgate serve",
        usage="%(prog)s [OPTIONS]",
        description="A KV-cache-aware gateway in front of vLLM and SGLang workers.",
        epilog="Each option is also an environment variable (--max-body: KVGATE_MAX_BODY) and a key of the "
        "configuration file (max_body). Flags win over environment over file.",
        allow_abbrev=False,
        formatter_class=OptionsHelp,
    )
    parser.set_defaults(seen=[])
    for title, options in groupby(_flag_options(), key=attrgetter("group")):
        group = parser.add_argument_group(title)
        for option in options:
            group.add_argument(*map(flag_of, option.names), action=_Record, nargs="*", option=option)
    return parser


def _flag_options() -> list[Option]:
    return [option for option in OPTIONS if "flag" in option.sources]


class _Record(argparse.Action):
    """Appends (option, the flag as typed, its words) to `namespace.seen`."""

    def __init__(self, option_strings: list[str], dest: str, nargs: str, option: Option) -> None:
        super().__init__(option_strings, dest, nargs=nargs, default=argparse.SUPPRESS, help=help_line(option))
        self.option = option

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[object] | None,
        option_string: str | None = None,
    ) -> None:
        namespace.seen.append((self.option, option_string, tuple(values or ())))


def _add_flag(
    given: GivenValues, option: Option, flag: str, values: tuple[str, ...], mistakes: list[Mistake]
) -> None:
    if not values and option.value.switch:
        values = ("true",)
    if not values or (len(values) > 1 and not option.many):
        mistakes.append(Mistake(flag, f"takes one value, {len(values)} given" if values else "needs a value"))
        return
    earlier = given[option.name].values if option.many and option.name in given else ()
    given[option.name] = Given(option, flag, earlier + values)


def _add(
    given: GivenValues, name: str, where: str, raw: object, source: str, mistakes: list[Mistake]
) -> None:
    option = BY_NAME.get(name)
    if option is None or source not in option.sources:
        mistakes.append(Mistake(where, f"unknown{_nearest(name, source)}"))
    elif option.name in given:
        mistakes.append(Mistake(where, f"already given as {given[option.name].where}"))
    elif isinstance(raw, list) and not option.many:
        mistakes.append(Mistake(where, "takes one value, not a list"))
    else:
        given[option.name] = Given(option, where, tuple(raw) if isinstance(raw, list) else (raw,))


def _nearest(name: str, source: str) -> str:
    known = [each for each, option in BY_NAME.items() if source in option.sources]
    return did_you_mean(name, known, spell=variable_of if source == "environment" else str)


def _unknown_arguments(arguments: Sequence[str]) -> Iterator[Mistake]:
    """A word behind an unknown flag is taken for its value, which is no second mistake."""
    flags = [name for option in _flag_options() for name in option.names]
    flag = ""
    for argument in arguments:
        if argument.startswith("--"):
            flag = argument.partition("=")[0]
            name = flag.removeprefix("--").replace("-", "_")
            is_needless = name in _NOT_NEEDED
            hint = ": leave it out, --prefill and --decode say it" if is_needless else ""
            yield Mistake(flag, f"unknown flag{hint or did_you_mean(name, flags, spell=flag_of)}")
        elif not flag:
            yield Mistake(argument, "unexpected word: options begin with --")


def _parse(path: str, content: str, mistakes: list[Mistake]) -> Mapping[str, Any]:
    parse = _PARSERS.get(path.rpartition(".")[2].lower())
    if parse is None:
        mistakes.append(Mistake(path, "must end in .yaml, .yml or .toml"))
        return {}
    try:
        parsed = parse(content)
    except RecursionError:
        mistakes.append(Mistake(path, "is nested too deeply"))
        return {}
    except (
        yaml.YAMLError,
        ValueError,
    ) as error:  # ValueError: TOML's, and of numbers and dates that can't be
        mistakes.append(Mistake(path, " ".join(str(error).split())))
        return {}
    if parsed is None:
        return {}
    if not isinstance(parsed, dict):
        mistakes.append(Mistake(path, "must be a mapping of option names to values"))
        return {}
    return parsed


class _UniqueKeys(yaml.SafeLoader):
    """YAML lets a later key silently replace an earlier one; a configuration must not."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    problem = f"key {key.value!r} given twice"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _parse_yaml(content: str) -> object:
    return yaml.load(content, Loader=_UniqueKeys)  # a SafeLoader


_PARSERS: dict[str, Callable[[str], object]] = {
    "yaml": _parse_yaml,
    "yml": _parse_yaml,
    "toml": tomllib.loads,
}
