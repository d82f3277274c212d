"""From given raw values to typed settings; what does not fit becomes a mistake, and the default stands."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from policies import PolicyError, parse_policy, read_policy, spell_policy
from router.config.errors import Mistake, did_you_mean
from router.config.options import BY_NAME, WORKER_KEYS, parameter_values
from router.config.pool_words import pool_entries
from router.config.settings import Settings, WorkerConfig
from router.config.sources import Given
from router.config.values import Value

_POOLS = ("prefill", "decode")
"""Options that name workers of that role."""

ReadFile = Callable[[str], str]


class Reader:
    """Collects `values`, the arguments of Settings, from one source after another: the later one wins."""

    def __init__(self, read_file: ReadFile, mistakes: list[Mistake]) -> None:
        self._read_file = read_file
        self._mistakes = mistakes
        self.values: dict[str, Any] = {}
        self.places: dict[str, str] = {}
        """Where each option was given last, by name."""

    def content(self, path: str, where: str) -> str | None:
        """The text of a file that the option at `where` names; None is a mistake noted."""
        try:
            return self._read_file(path)
        except OSError as error:
            self._wrong(where, f"can't read {path}: {error.strerror or error}")
        except UnicodeError:
            self._wrong(where, f"can't read {path}: not UTF-8 text")
        return None

    def read(self, given_values: Iterable[Given]) -> None:
        for given in given_values:
            option = given.option
            self.places[option.name] = given.where
            if option.parameter:
                self._set_parameter(*option.parameter, given.values[0], given.where)
            elif option.name == "workers":
                self.values["workers"] = tuple(self.workers(given.values, given.where))
            elif option.name in _POOLS:
                self.values[option.name] = tuple(self._pool(given, option.name))
            elif option.name in ("prefill_policy", "decode_policy"):
                self._pool_policy(given)
            elif option.name == "policy":
                self._policy(given.values[0], given.where)
            else:
                self._plain(given)

    def _plain(self, given: Given) -> None:
        option = given.option
        parsed = list(self._parsed(option.value, self._raw_values(given), given.where, secret=option.secret))
        if option.many:
            self.values[option.name] = tuple(parsed)
        elif parsed:
            self.values[option.name] = parsed[0]

    def _parsed(
        self, value: Value, raws: Iterable[object], where: str, *, secret: bool = False
    ) -> Iterator[object]:
        """Each raw value parsed; one that does not fit yields nothing but a mistake."""
        for raw in raws:
            try:
                yield value.parse(raw)
            except (ValueError, OverflowError):
                shown = "" if secret else f", not {raw!r}"
                self._wrong(where, f"must be {value.allowed}{shown}")

    def _raw_values(self, given: Given) -> Iterator[object]:
        """The values one by one: keys read from their files, lists in one text taken apart."""
        for raw in given.values:
            if given.option.secret:
                yield from self._keys(raw, given.where, many=given.option.many)
            elif given.option.split and isinstance(raw, str):
                yield from (word for word in re.split(r"[\s,]+", raw) if word)
            else:
                yield raw

    def _keys(self, raw: object, where: str, *, many: bool) -> list[object]:
        """The key itself, or the lines of the file that `@FILE` names."""
        if not isinstance(raw, str) or not raw.startswith("@"):
            return [raw]
        content = self.content(raw[1:], where)
        if content is None:
            return []
        lines: list[object] = [line.strip() for line in content.splitlines() if line.strip()]
        if not lines or (len(lines) > 1 and not many):
            self._wrong(where, f"{raw[1:]} holds {len(lines) or 'no'} keys")
            return []
        return lines

    def _policy(self, raw: object, where: str) -> None:
        """`NAME,key=value,...`, and in a file also `{name: ..., parameters: {...}}`."""
        if isinstance(raw, dict):
            self._policy_mapping(raw, where)
            return
        for text in self._parsed(BY_NAME["policy"].value, [raw], where):
            self._read_policy(str(text), where)

    def _read_policy(self, text: str, where: str) -> str | None:
        """The name in the table; None is a mistake noted."""
        try:
            name, parameters = read_policy(text)
        except PolicyError as error:
            self._wrong(where, str(error))
            return None
        self.values["policy"] = name
        self._parameters_of(name).update(parameters)
        return name

    def _policy_mapping(self, raw: dict[Any, Any], where: str) -> None:
        self._known_keys(raw, ("name", "parameters"), where)
        name = raw.get("name", Settings().policy)
        parameters = raw.get("parameters", {})
        if not isinstance(parameters, dict):
            self._wrong(f"{where}.parameters", "must be a mapping of parameter names to values")
            return
        for text in self._parsed(BY_NAME["policy"].value, [name], f"{where}.name"):
            if (policy := self._read_policy(str(text), f"{where}.name")) is None:
                return
            for parameter in self._known_keys(parameters, parameter_values(policy), f"{where}.parameters"):
                here = f"{where}.parameters.{parameter}"
                self._set_parameter(policy, parameter, parameters[parameter], here)

    def _set_parameter(self, policy: str, parameter: str, raw: object, where: str) -> None:
        for parsed in self._parsed(parameter_values(policy)[parameter], [raw], where):
            self._parameters_of(policy)[parameter] = parsed

    def _parameters_of(self, policy: str) -> dict[str, Any]:
        """What is set for that policy so far; may be added to."""
        given: dict[str, dict[str, Any]] = self.values.setdefault("policy_parameters", {})
        return given.setdefault(policy, {})

    def workers(self, raws: Sequence[Any], where: str) -> Iterator[WorkerConfig]:
        for index, raw in enumerate(raws):
            yield from self.worker({"url": raw} if isinstance(raw, str) else raw, f"{where}[{index}]")

    def worker(self, entry: object, where: str) -> Iterator[WorkerConfig]:
        """The worker, or nothing but mistakes."""
        if not isinstance(entry, dict) or "url" not in entry:
            self._wrong(where, "must be a URL, or a mapping with a url")
            return
        fields: dict[str, Any] = {}
        for name in self._known_keys(entry, WORKER_KEYS, where):
            raws = (
                self._keys(entry[name], f"{where}.{name}", many=False) if name == "api_key" else [entry[name]]
            )
            parsed = self._parsed(WORKER_KEYS[name], raws, f"{where}.{name}", secret=name == "api_key")
            fields.update((name, each) for each in parsed)
        if "url" in fields:
            yield WorkerConfig(**fields)

    def _pool(self, given: Given, role: str) -> Iterator[WorkerConfig]:
        entries, mistakes = pool_entries(given.values)
        for what in mistakes:
            self._wrong(given.where, what)
        for index, entry in enumerate(entries):
            where = f"{given.where}[{index}]"
            if entry.get("role", role) != role:
                self._wrong(f"{where}.role", f"is {role} here: name other workers elsewhere")
            yield from self.worker({**entry, "role": role}, where)

    def _pool_policy(self, given: Given) -> None:
        """Kept as it is written: its parameters are its own."""
        for text in self._parsed(given.option.value, given.values[:1], given.where):
            if text is None:
                self.values[given.option.name] = None
                continue
            try:
                self.values[given.option.name] = spell_policy(parse_policy(str(text)))
            except PolicyError as error:
                self._wrong(given.where, str(error))

    def _known_keys(self, mapping: Mapping[Any, Any], known: Collection[str], where: str) -> list[str]:
        """The keys of `mapping` that are known; each other one is a mistake."""
        for key in mapping:
            if key not in known:
                allowed = ", ".join(known) or "none"
                self._wrong(f"{where}.{key}", f"unknown{did_you_mean(str(key), known)}; allowed: {allowed}")
        return [key for key in known if key in mapping]

    def _wrong(self, where: str, what: str) -> None:
        self._mistakes.append(Mistake(where, what))
