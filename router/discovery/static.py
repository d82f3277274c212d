"""Workers that are written down: `--worker-urls` and the entries `workers` of a configuration file."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from policies.types import Role
from router.discovery.base import WorkerSpec
from router.discovery.templates import TemplateError, fill
from router.worker_address import WorkerAddress

_HOST_PORT = re.compile(r"(\[[0-9a-fA-F:]+\]|[^\s:]+):\d{1,5}")
_PORT_MAX = 65535
_RANK_SUFFIX = re.compile(r"@\d+$")


class ConfiguredWorker(Protocol):
    """One worker with its own values; None means those of the fleet."""

    @property
    def url(self) -> str: ...
    @property
    def name(self) -> str | None: ...
    @property
    def kv_events(self) -> str | None: ...
    @property
    def kv_replay(self) -> str | None: ...
    @property
    def role(self) -> str: ...
    @property
    def bootstrap_port(self) -> int | None: ...
    @property
    def kv_address(self) -> str | None: ...
    @property
    def connector(self) -> str | None: ...
    @property
    def api_key(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class FleetDefaults:
    """What holds for every worker that has no value of its own. Endpoints are templates."""

    kv_events: str | None = None
    kv_replay: str | None = None
    api_key: str | None = None
    connector: str = "nixl"


class StaticSource:
    """The source `static`: one set, for good."""

    def __init__(self, specs: Sequence[WorkerSpec]) -> None:
        self._specs = tuple(specs)

    async def watch(self) -> AsyncIterator[Sequence[WorkerSpec]]:
        yield self._specs


@dataclass(frozen=True, slots=True)
class _UrlEntry:
    """A worker of which only the URL was given."""

    url: str
    name: str | None = None
    kv_events: str | None = None
    kv_replay: str | None = None
    role: str = Role.BOTH.value
    bootstrap_port: int | None = None
    kv_address: str | None = None
    connector: str | None = None
    api_key: str | None = None


def expand_workers(
    urls: Iterable[str], entries: Mapping[str, Sequence[ConfiguredWorker]], fleet: FleetDefaults
) -> tuple[list[WorkerSpec], list[str]]:
    """All workers in order, URLs first, and every mistake at once, in words behind the key at fault.

    `entries`: by the option that names them. `index` in templates counts over all, in the same order. A
    worker with a mistake is left out.
    """
    specs: list[WorkerSpec] = []
    mistakes: list[str] = []
    sources: list[tuple[str, ConfiguredWorker]] = [("", _UrlEntry(url)) for url in urls]
    sources += [
        (f"{option}[{i}].", entry) for option, each in entries.items() for i, entry in enumerate(each)
    ]
    for index, (prefix, entry) in enumerate(sources):
        spec, wrong = expand_worker(entry, fleet, index=index)
        if spec is not None:
            wrong += clashes(spec, specs)
            specs.append(spec)
        mistakes += (_in_words(prefix, mistake) for mistake in wrong)
    return specs, list(dict.fromkeys(mistakes))


Mistake = tuple[str, str]
"""A field of ConfiguredWorker, and what is wrong with its value."""


class WrongWorker(ValueError):
    """A worker can't be added. `field`: the first at fault; the text names it and all others."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        super().__init__("; ".join(f"{key}: {what}" for key, what in mistakes))
        self.field = mistakes[0][0]


def _in_words(prefix: str, mistake: Mistake) -> str:
    key, text = mistake
    return f"{prefix}{key}: {text}" if prefix or key != "url" else f"worker_urls: {text}"


def expand_worker(
    entry: ConfiguredWorker, fleet: FleetDefaults, *, index: int
) -> tuple[WorkerSpec | None, list[Mistake]]:
    """One worker, or None and what is wrong with it."""
    try:
        address = WorkerAddress.parse(entry.url)
    except ValueError as error:
        return None, [("url", str(error))]
    wrong: list[Mistake] = []

    def endpoint(key: str, template: str | None) -> str | None:
        try:
            return fill(template, address, index=index) if template else None
        except TemplateError as error:
            wrong.append((key, str(error)))
            return None

    kv_events = endpoint("kv_events", entry.kv_events or fleet.kv_events)
    kv_replay = endpoint("kv_replay", entry.kv_replay or fleet.kv_replay)
    if kv_replay is not None and kv_replay.startswith("bind:"):
        wrong.append(("kv_replay", f"'{kv_replay}': replays are asked for, which needs no bind:"))
    if entry.name is not None and _RANK_SUFFIX.search(entry.name):
        wrong.append(("name", f"'{entry.name}' ends like the id of a data-parallel rank (@ and a number)"))
    if entry.role not in tuple(Role):
        wrong.append(("role", f"'{entry.role}' is none of {', '.join(Role)}"))
    wrong += _wrong_transfer(entry, fleet)
    if wrong:
        return None, wrong
    spec = WorkerSpec(
        id=entry.name or address.id,
        url=address.url,
        kv_events=kv_events,
        kv_replay=kv_replay,
        role=Role(entry.role),
        bootstrap_port=entry.bootstrap_port,
        kv_address=entry.kv_address,
        connector=entry.connector or fleet.connector,
        api_key=entry.api_key or fleet.api_key,
    )
    return spec, []


def _wrong_transfer(entry: ConfiguredWorker, fleet: FleetDefaults) -> list[Mistake]:
    """What can't be right about handing over, whichever engine it turns out to be."""
    wrong: list[Mistake] = []
    if entry.role != Role.PREFILL and entry.bootstrap_port is not None:
        what = f"is for prefill workers, which have a bootstrap server; this one's role is {entry.role}"
        wrong.append(("bootstrap_port", what))
    needs_address = (entry.connector or fleet.connector) == "p2p" and entry.role != Role.BOTH
    if needs_address and entry.kv_address is None:
        wrong.append(("kv_address", "is needed for the connector p2p: host:port of the worker's KV socket"))
    if entry.kv_address is not None and not _is_host_port(entry.kv_address):
        wrong.append(("kv_address", f"'{entry.kv_address}' must be host:port, IPv6 in brackets"))
    return wrong


def _is_host_port(text: str) -> bool:
    return bool(_HOST_PORT.fullmatch(text)) and 0 < int(text.rpartition(":")[2]) <= _PORT_MAX


def clashes(spec: WorkerSpec, others: Iterable[WorkerSpec]) -> list[Mistake]:
    """What two workers may not share. One event endpoint for two would mix up what they hold."""
    found: list[Mistake] = []
    for other in others:
        if spec.url == other.url:
            found.append(("url", f"{spec.url} is given twice"))
            continue
        if spec.id == other.id:
            found.append(("name", f"'{spec.id}' is given to two workers"))
        for key in ("kv_events", "kv_replay"):
            endpoint = getattr(spec, key)
            if endpoint is not None and endpoint == getattr(other, key):
                found.append((key, f"{endpoint} serves {other.id} too; use {{host}}, {{port}} or {{index}}"))
    return found
