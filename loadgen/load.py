"""`kvgate load`: a trace or a synthetic workload against any OpenAI-compatible endpoint, open loop, with its
figures."""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import msgspec
import uvloop

from loadgen.arguments import INTERRUPTED, above_zero, command_line, whole_number, workload
from loadgen.client import chat_requests, run_load
from loadgen.compare import summarize
from loadgen.console import Console, ProgressBar
from loadgen.report import TABLE_NOTE, as_json, render_table
from loadgen.results import RequestResult, some_errors
from loadgen.traces import TraceError

WORKLOADS = ("conversation",)
"""Synthetic ones; this has the shape of the Mooncake conversation trace."""


def main(argv: Sequence[str]) -> int:
    """Exit code 0 when every request was answered, 1 otherwise."""
    arguments = _parser().parse_args(argv)
    console = Console(sys.stderr)
    try:
        results = uvloop.run(_load(arguments, console))
    except (TraceError, OSError, aiohttp.ClientError) as error:
        console.line(f"kvgate load: {error}")
        return 1
    except KeyboardInterrupt:
        console.line("stopped")
        return INTERRUPTED
    _report(results, as_program=arguments.json)
    for text in some_errors(results):
        console.line(f"error: {text}")
    return int(any(result.error is not None for result in results))


async def _load(arguments: argparse.Namespace, console: Console) -> list[RequestResult]:
    requests = workload(arguments.trace, arguments.requests, arguments.seed)
    model = arguments.model or await _first_model(arguments.url)
    loads = chat_requests(requests, arguments.rate_scale, prefix="load", model=model)
    return await run_load(arguments.url, loads, ProgressBar(console, model, len(loads)))


async def _first_model(url: str) -> str:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{url}/v1/models", raise_for_status=True) as response,
    ):
        models = (await response.json())["data"]
    if not models:
        raise OSError(f"{url} serves no model")
    return str(models[0]["id"])


def _report(results: Sequence[RequestResult], *, as_program: bool) -> None:
    workers = {result.worker for result in results if result.error is None}
    summary = summarize("load", results, len(workers), random.Random(0))
    if as_program:
        text = msgspec.json.encode(as_json([summary])).decode()
    else:
        text = f"{render_table([summary])}\n{TABLE_NOTE}"
    Console().line(text)


def _parser() -> argparse.ArgumentParser:
    parser = command_line(
        "load", "Sends a workload to a gateway or a worker at its own times, and measures the answers."
    )
    parser.add_argument("--url", type=_http_url, required=True, help="such as http://127.0.0.1:8000")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--trace", type=Path, help="trace in the Mooncake format (.jsonl, .gz or .xz)")
    source.add_argument("--workload", choices=WORKLOADS, default=WORKLOADS[0], help="a synthetic one")
    parser.add_argument("--requests", type=whole_number(1), default=600, help="how many requests")
    parser.add_argument("--rate-scale", type=above_zero, default=1.0, help="divides the arrival times")
    parser.add_argument("--model", help="which model to ask for; by default the first that is served")
    parser.add_argument("--seed", type=int, default=0, help="of the synthetic workload")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    return parser


def _http_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme != "http" or not parts.hostname or not parts.port:
        raise argparse.ArgumentTypeError(f"{text!r} is not http://HOST:PORT")
    return f"http://{parts.netloc}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
