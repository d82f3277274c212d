"""From raw values to `Settings`: precedence, validation, and the rules that span several options."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from router.config.errors import ConfigErrors, Mistake, did_you_mean
from router.config.options import BY_NAME, WORKER_KEYS
from router.config.policy_options import parameter_values
from router.config.settings import Settings, WorkerConfig
from router.config.sources import Given, GivenValues, from_environment, from_file, from_flags
from router.config.values import Value

ReadFile = Callable[[str], str]


def load(argv: Sequence[str], environ: Mapping[str, str], read_file: ReadFile) -> Settings:
    """The settings that `argv` (without the command's name), `environ` and the file they name make up.

    Flags win over environment over file; an overridden value must be right all the same. `read_file` maps a
    path to its text and may raise OSError or UnicodeError. Raises ConfigErrors with all mistakes; SystemExit
    after `--help`.
    """
    mistakes: list[Mistake] = []
    flags = from_flags(argv, mistakes)
    environment = from_environment(environ, mistakes)
    reader = _Reader(read_file, mistakes)
    file = _config_file(environment | flags, reader)
    values: dict[str, Any] = {}
    for given in (file, environment, flags):
        reader.into(values, given)
    mistakes.extend(_contradictions(values))
    if mistakes:
        raise ConfigErrors(mistakes)
    return Settings(**values)


def _config_file(given: GivenValues, reader: _Reader) -> GivenValues:
    if "config" not in given:
        return {}
    path = str(given["config"].values[-1])
    content = reader.text(path, given["config"].where)
    return {} if content is None else from_file(path, content, reader.mistakes)


class _Reader:
    """Turns given values into settings; what does not fit becomes a mistake and the default stands."""

    def __init__(self, read_file: ReadFile, mistakes: list[Mistake]) -> None:
        self._read_file = read_file
        self.mistakes = mistakes

    def text(self, path: str, where: str) -> str | None:
        try:
            return self._read_file(path)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8 text"
            self.mistakes.append(Mistake(where, f"can't read {path}: {reason}"))
            return None

    def into(self, values: dict[str, Any], given_values: GivenValues) -> None:
        for given in given_values.values():
            option = given.option
            if option.kv_parameter:
                self._policy_parameter(
                    values, "kv", option.kv_parameter, option.value, given.where, given.values[0]
                )
            elif option.name == "workers":
                values["workers"] = tuple(self._workers(given))
            elif option.name == "policy" and isinstance(given.values[0], dict):
                self._policy(values, given.values[0], given.where)
            elif option.many:
                parsed = [
                    self.parse(option.value, raw, given.where, option.secret)
                    for raw in self._raw_values(given)
                ]
                values[option.name] = tuple(each for each in parsed if each is not _WRONG)
            else:
                for raw in self._raw_values(given):
                    _put(values, option.name, self.parse(option.value, raw, given.where, option.secret))

    def parse(self, value: Value, raw: Any, where: str, secret: bool = False) -> Any:
        try:
            return value.parse(raw)
        except (ValueError, TypeError, OverflowError):
            shown = "" if secret else f", not {raw!r}"
            self.mistakes.append(Mistake(where, f"must be {value.allowed}{shown}"))
            return _WRONG

    def _raw_values(self, given: Given) -> list[Any]:
        """The values one by one: secrets read from their files, lists in one text taken apart."""
        raws = list(given.values)
        if given.option.secret:
            return [line for raw in raws for line in self._secret_lines(raw, given)]
        if given.option.split:
            return [
                word
                for raw in raws
                for word in (re.split(r"[\s,]+", raw) if isinstance(raw, str) else [raw])
                if word != ""
            ]
        return raws

    def _secret_lines(self, raw: Any, given: Given) -> list[Any]:
        if not (isinstance(raw, str) and raw.startswith("@")):
            return [raw]
        content = self.text(raw[1:], given.where)
        if content is None:
            return []
        lines = [line.strip() for line in content.splitlines() if line.strip()]
        if not lines or (len(lines) > 1 and not given.option.many):
            self.mistakes.append(Mistake(given.where, f"{raw[1:]} holds {len(lines) or 'no'} keys"))
            return []
        return lines

    def _policy(self, values: dict[str, Any], raw: dict[Any, Any], where: str) -> None:
        """A file may also say `policy: {name: ..., parameters: {...}}`."""
        self._unknown_keys(raw, ("name", "parameters"), where)
        name = self.parse(BY_NAME["policy"].value, raw.get("name", Settings().policy), f"{where}.name")
        parameters = raw.get("parameters", {})
        if not isinstance(parameters, dict):
            self.mistakes.append(Mistake(f"{where}.parameters", "must be a mapping"))
            return
        if name is _WRONG:
            return
        values["policy"] = name
        known = parameter_values(name)
        self._unknown_keys(parameters, known, f"{where}.parameters")
        for parameter in known.keys() & parameters.keys():
            here = f"{where}.parameters.{parameter}"
            self._policy_parameter(values, name, parameter, known[parameter], here, parameters[parameter])

    def _policy_parameter(
        self, values: dict[str, Any], policy: str, parameter: str, value: Value, where: str, raw: Any
    ) -> None:
        parameters = values.setdefault("policy_parameters", {}).setdefault(policy, {})
        _put(parameters, parameter, self.parse(value, raw, where))

    def _workers(self, given: Given) -> Iterator[WorkerConfig]:
        for index, raw in enumerate(given.values):
            where = f"{given.where}[{index}]"
            entry = {"url": raw} if isinstance(raw, str) else raw
            if not isinstance(entry, dict):
                self.mistakes.append(Mistake(where, "must be a URL or a mapping with a url"))
            elif "url" not in entry:
                self.mistakes.append(Mistake(where, "needs a url"))
            elif (worker := self._worker(entry, where)) is not None:
                yield worker

    def _worker(self, entry: dict[Any, Any], where: str) -> WorkerConfig | None:
        self._unknown_keys(entry, WORKER_KEYS, where)
        fields: dict[str, Any] = {}
        for name, value in WORKER_KEYS.items():
            if name in entry:
                _put(
                    fields, name, self.parse(value, entry[name], f"{where}.{name}", secret=name == "api_key")
                )
        return WorkerConfig(**fields) if "url" in fields else None

    def _unknown_keys(self, mapping: dict[Any, Any], known: Collection[str], where: str) -> None:
        for key in mapping:
            if key not in known:
                allowed = ", ".join(known) or "none"
                what = f"unknown{did_you_mean(str(key), known)}; allowed: {allowed}"
                self.mistakes.append(Mistake(f"{where}.{key}", what))


_WRONG: Any = object()
"""Stands for a value that was a mistake."""


def _put(values: dict[str, Any], name: str, value: Any) -> None:
    if value is not _WRONG:
        values[name] = value


def _contradictions(values: Mapping[str, Any]) -> Iterator[Mistake]:
    """Rules between options. Values that were mistakes themselves are absent and count as their defaults."""
    settings = Settings(**values)
    if not _is_loopback(settings.admin_host) and settings.admin_api_key is None:
        yield Mistake("--admin-host", f"{settings.admin_host} is not loopback: --admin-api-key must be set")
    if settings.port == settings.admin_port != 0 and settings.host in (settings.admin_host, "0.0.0.0", "::"):
        yield Mistake("--admin-port", f"must differ from --port ({settings.port})")
    if settings.kv_replay is not None and settings.kv_events is None:
        yield Mistake("--kv-replay", "needs --kv-events: events are what is replayed")
    for worker in settings.workers:
        if worker.kv_replay is not None and worker.kv_events is None and settings.kv_events is None:
            yield Mistake(f"workers: {worker.url}", "kv_replay needs kv_events: events are what is replayed")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
