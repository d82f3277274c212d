"""`kvgate index`: flags and a file of workers in, the index server of `indexer` as a process out."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import uvloop
import yaml
from aiohttp import web

from indexer.http import WorkerBody, build_index_app
from indexer.http_listener import Site
from indexer.limits import INDEX_BYTES
from indexer.service import FollowedWorker, IndexService
from indexer.warm_start import SnapshotFile, WarmStart
from router.config import in_brackets, is_loopback
from router.config.values import Value, byte_size, duration, integer
from router.logs import set_up_logging
from router.metrics.export import text_slices
from router.metrics.workers import publisher_readings
from router.server import raise_descriptor_limit

_logger = logging.getLogger("kvgate.index")

DEFAULT_PORT = 9290


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    try:
        in_file: Sequence[FollowedWorker] = ()
        if arguments.config is not None:
            flags, in_file = _from_file(arguments.config, parser)
            arguments = parser.parse_args([*flags, *argv])
        workers = [*in_file, *map(worker_of, arguments.worker)]
        api_key = _key(arguments.api_key)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if api_key is None and not is_loopback(arguments.host):
        parser.error(f"--host {arguments.host} is not loopback: --api-key must be set")
    set_up_logging(arguments.log_level)
    raise_descriptor_limit()
    return uvloop.run(_serve(arguments, workers, api_key))


async def _serve(
    arguments: argparse.Namespace, workers: Sequence[FollowedWorker], api_key: str | None
) -> int:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    warm_start = WarmStart()
    if arguments.snapshot is not None:
        warm_start.read_file(arguments.snapshot)
    if arguments.warm_from is not None:
        await warm_start.fetch(arguments.warm_from, api_key)
    service = IndexService(arguments.index_max_bytes, warm_start)
    runner = web.AppRunner(
        build_index_app(service, exposition=exposition, api_key=api_key), handle_signals=False
    )
    try:
        await runner.setup()
        await Site(runner, arguments.host, arguments.port).start()
        service.start()
        for worker in workers:
            service.register(worker)
    except (OSError, ValueError) as error:
        _logger.error("can't start: %s", error)
        return 1
    else:
        port = runner.addresses[0][1]
        _logger.info("indexing %d workers on http://%s:%d", len(workers), in_brackets(arguments.host), port)
        await _until(stopped, service, arguments)
        return 0
    finally:
        service.stop()
        await runner.cleanup()


async def _until(stopped: asyncio.Event, service: IndexService, arguments: argparse.Namespace) -> None:
    if arguments.snapshot is None:
        await stopped.wait()
        return
    file = SnapshotFile(arguments.snapshot, service.snapshot, arguments.snapshot_interval)
    file.start()
    await stopped.wait()
    file.stop()


def exposition(service: IndexService) -> Iterator[bytes]:
    """Under the names that the gateway uses."""
    for reading in publisher_readings(service.feed, service.slots):
        yield from text_slices(reading)


def worker_of(text: str) -> FollowedWorker:
    """`name=w0,events=tcp://host:5557,model=m`; further keys: replay, engine, block-size. Raises
    ValueError."""
    given = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if not equals or key.strip() in given:
            raise ValueError(f"--worker {text!r}: {part!r} must be KEY=VALUE, each key once")
        given[key.strip()] = value.strip()
    return _worker(given, f"--worker {text!r}")


def _worker(given: object, where: str) -> FollowedWorker:
    try:
        return msgspec.convert(given, WorkerBody, strict=False).worker()
    except (msgspec.ValidationError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from None


def _from_file(path: str, parser: argparse.ArgumentParser) -> tuple[list[str], list[FollowedWorker]]:
    """What the file says as flags, which those of the command line override, and its workers. Raises
    ValueError."""
    try:
        content: Any = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError(f"--config {path}: is nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"--config {path}: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"--config {path}: must be a mapping of flags' names, and workers: a list")
    entries = content.pop("workers", None) or []
    if not isinstance(entries, list):
        raise ValueError(f"--config {path}: workers must be a list of mappings with the keys of --worker")
    flags = [f"--{str(name).replace('_', '-')}={value}" for name, value in content.items()]
    known = {option for action in parser._actions for option in action.option_strings}
    if strange := [flag for flag in flags if flag.partition("=")[0] not in known - _NOT_IN_FILE]:
        raise ValueError(f"--config {path}: no option {strange[0].partition('=')[0][2:]!r} can be set there")
    workers = [_worker(entry, f"--config {path}: worker {number}") for number, entry in enumerate(entries, 1)]
    return flags, workers


_NOT_IN_FILE = {"--config", "--worker", "--help"}


def _key(given: str | None) -> str | None:
    """The key itself, or what the file that `@FILE` names holds."""
    if given is None:
        return None
    key = Path(given[1:]).read_text(encoding="utf-8").strip() if given.startswith("@") else given
    if not key:
        raise ValueError("--api-key must not be empty")
    return key


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kvgate index",
        description="Follows workers by their KV events and says over HTTP who holds which prompt.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; beyond loopback with a key"
    )
    parser.add_argument(
        "--port", type=_parsed(integer(0, 65535)), default=DEFAULT_PORT, help="0 takes a free one"
    )
    parser.add_argument(
        "--worker",
        action="append",
        default=[],
        metavar="KEY=VALUE,...",
        help="a worker to follow: name, events and model, and if need be replay, engine, block-size, "
        "dp-rank and topic; "
        "repeatable",
    )
    parser.add_argument(
        "--config", metavar="FILE", help="YAML: other flags by their names, and workers: a list of mappings"
    )
    parser.add_argument("--api-key", metavar="KEY", help="asked for as bearer token; or @FILE")
    parser.add_argument(
        "--index-max-bytes",
        type=_parsed(byte_size()),
        default=INDEX_BYTES,
        metavar="SIZE",
        help="memory for what KV events tell",
    )
    parser.add_argument(
        "--snapshot", metavar="FILE", help="begin with it, write it now and then and at the end"
    )
    parser.add_argument(
        "--snapshot-interval", type=_parsed(duration()), default=60.0, help="between two writings of it"
    )
    parser.add_argument(
        "--warm-from",
        metavar="URL",
        help="begin with what the index server there knows; the key of --api-key is shown to it",
    )
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    return parser


def _parsed(value: Value) -> Callable[[str], object]:
    def parse(text: str) -> object:
        try:
            return value.parse(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be {value.allowed}, not {text!r}") from None

    return parse
