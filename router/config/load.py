"""The way in: flags over environment over file, and the rules that span several options."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from router.config.addresses import is_loopback, leads_to
from router.config.errors import ConfigErrors, Mistake
from router.config.reader import Reader, ReadFile
from router.config.settings import Settings, WorkerConfig
from router.config.sources import GivenValues, from_environment, from_file, from_flags
from router.config.tls_files import tls_mistakes
from router.config.tokenizer_places import tokenizer_mistakes
from router.discovery import expand_workers
from router.worker_address import WorkerAddress


def load(argv: Sequence[str], environ: Mapping[str, str], read_file: ReadFile) -> Settings:
    """The settings that `argv` (without the command's name), `environ` and the file that they name make up.

    A value must be right even where another source overrides it. `read_file` maps a path to its text and may
    raise OSError or UnicodeError. Raises ConfigErrors with all mistakes; SystemExit after `--help`.
    """
    mistakes: list[Mistake] = []
    flags = from_flags(argv, mistakes)
    environment = from_environment(environ, mistakes)
    reader = Reader(read_file, mistakes)
    for given in (_from_config_file(environment | flags, reader, mistakes), environment, flags):
        reader.read(given.values())
    settings = Settings(**reader.values)
    mistakes.extend(_contradictions(settings, reader.places))
    mistakes.extend(tls_mistakes(settings, reader.places))
    mistakes.extend(tokenizer_mistakes(settings, reader.places))
    mistakes.extend(_wrong_workers(settings, reader.places))
    mistakes.extend(_itself_as_worker(settings, reader.places))
    if mistakes:
        raise ConfigErrors(mistakes)
    return settings


def worker_from(fields: Mapping[str, Any]) -> WorkerConfig:
    """A worker described as an entry of `workers:`, but with its key in place. Raises ConfigErrors."""
    mistakes: list[Mistake] = []
    workers = list(Reader(_read_nothing, mistakes).worker(dict(fields), "worker"))
    if mistakes:
        raise ConfigErrors(mistakes)
    return workers[0]


def _read_nothing(path: str) -> str:
    raise PermissionError(errno.EPERM, "files are read at the start only")


def _from_config_file(given: GivenValues, reader: Reader, mistakes: list[Mistake]) -> GivenValues:
    if "config" not in given:
        return {}
    path = str(given["config"].values[0])
    content = reader.content(path, given["config"].where)
    return {} if content is None else from_file(path, content, mistakes)


def _contradictions(settings: Settings, places: Mapping[str, str]) -> Iterator[Mistake]:
    """Rules between options; a value that was a mistake itself counts as its default here."""
    if not is_loopback(settings.admin_host) and settings.admin_api_key is None:
        what = f"{settings.admin_host} is not loopback: --admin-api-key must be set"
        yield Mistake(places["admin_host"], what)
    if settings.port == settings.admin_port != 0 and settings.host in (settings.admin_host, "0.0.0.0", "::"):
        yield Mistake(places.get("port") or places["admin_port"], f"both ports are {settings.port}")
    yield from _replay_without_events(settings, places)
    yield from _nobody_who_answers(settings, places)


def _nobody_who_answers(settings: Settings, places: Mapping[str, str]) -> Iterator[Mistake]:
    """Without any worker the gateway may wait for what the admin port adds; with prefill workers alone,
    somebody has forgotten the others."""
    roles = {entry.role for entries in settings.entries.values() for entry in entries}
    if roles == {"prefill"} and not settings.worker_urls:
        what = "prefill workers answer no requests: name decode workers too (--decode), or whole ones"
        yield Mistake(places["prefill" if settings.prefill else "workers"], what)


def _replay_without_events(settings: Settings, places: Mapping[str, str]) -> Iterator[Mistake]:
    if settings.kv_events is not None:
        return
    what = "needs kv_events: events are what is replayed"
    if settings.kv_replay is not None:
        yield Mistake(places["kv_replay"], what)
    for option, entries in settings.entries.items():
        for index, worker in enumerate(entries):
            if worker.kv_replay is not None and worker.kv_events is None:
                yield Mistake(f"{places[option]}[{index}].kv_replay", what)


def _wrong_workers(settings: Settings, places: Mapping[str, str]) -> Iterator[Mistake]:
    """URLs, endpoints and names that can't be, once the templates are filled in for each worker."""
    _, mistakes = expand_workers(settings.worker_urls, settings.entries, settings.fleet_defaults)
    for mistake in mistakes:
        key, _, what = mistake.partition(": ")
        option = re.split(r"[\[.]", key, maxsplit=1)[0]
        yield Mistake(places.get(option, option) + key.removeprefix(option), what)


def _itself_as_worker(settings: Settings, places: Mapping[str, str]) -> Iterator[Mistake]:
    for url in settings.worker_urls:
        if what := own_address_in(url, settings):
            yield Mistake(places["worker_urls"], what)
    for option, entries in settings.entries.items():
        for index, worker in enumerate(entries):
            if what := own_address_in(worker.url, settings):
                yield Mistake(f"{places[option]}[{index}].url", what)


def own_address_in(url: str, settings: Settings) -> str:
    """In words, that the worker at `url` is plainly this gateway itself; "" for any other URL. What only a
    name server or a proxy knows shows when a request comes back."""
    try:
        address = WorkerAddress.parse(url)
    except ValueError:
        return ""
    ports = ((settings.host, settings.port, "public"), (settings.admin_host, settings.admin_port, "admin"))
    for host, port, kind in ports:
        if port != 0 and address.port == port and leads_to(address.host, host):
            return f"'{url}' is this gateway's own {kind} port: name engines"
    return ""
