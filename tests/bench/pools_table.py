"""The table of docs/disaggregation.md: `python -m tests.bench.pools_table TRACES` prints it.

TRACES is a folder with the three traces in `TRACES`. Every row is one `kvgate sim`; what is asked of it is in
`_arguments`. Takes a few minutes on one core.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from loadgen.console import Console
from loadgen.sim.command import main as simulate

TRACES: Mapping[str, tuple[str, Sequence[float]]] = {
    "conversation": ("mooncake-conversation/conversation_head8000.jsonl.gz", (1.0, 1.6)),
    "tool-agent": ("mooncake-toolagent-head/mooncake_trace_1000.jsonl.gz", (0.4, 0.7)),
    "agent sessions": ("agentic-coding-sessions/sessions.jsonl.xz", (0.5, 1.0)),
}
"""File, and how many times as fast as recorded its requests arrive: at a lower and a higher load."""
NUM_REQUESTS = 1500
SPEEDS_GBPS = (1, 200)
MODES = ("always", "conditional", "auto")
HEAD = (
    "| trace, load | Gbit/s | mode | handed over | TTFT mean / p50 / p99 "
    "| TPOT | end to end, s | net gain |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- |"
)
POOLS = ("--prefill", "4", "--decode", "4")


def main(arguments: Sequence[str]) -> int:
    folder, seeds = Path(arguments[0]), arguments[1:] or ["0"]
    console = Console()
    console.line(HEAD)
    for name, (file, rates) in TRACES.items():
        for rate in rates:
            for row in _rows(f"{name}, {rate:g}", folder / file, rate, seeds):
                console.line(row)
    return 0


def _rows(title: str, trace: Path, rate: float, seeds: Sequence[str]) -> Iterator[str]:
    yield _row(title, "", "8 whole", _mean_of(_figures(trace, rate, seed, ()) for seed in seeds))
    found = _mean_of(_figures(trace, rate, seed, (*POOLS, "--disagg", "never")) for seed in seeds)
    yield _row(title, "", "never", found)
    for speed in SPEEDS_GBPS:
        for mode in MODES:
            options = (*POOLS, "--disagg", mode, "--transfer-gbps", str(speed))
            found = _mean_of(_figures(trace, rate, seed, options) for seed in seeds)
            yield _row(title, str(speed), mode, found)


def _figures(trace: Path, rate: float, seed: str, options: Sequence[str]) -> dict[str, Any]:
    with TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        out = Path(folder) / "figures.json"
        code = simulate([*_arguments(trace, rate, seed), *options, "--json", str(out)])
        assert code == 0
        return msgspec.json.decode(out.read_bytes())[0]


def _arguments(trace: Path, rate: float, seed: str) -> list[str]:
    settings = {
        "--trace": trace,
        "--requests": NUM_REQUESTS,
        "--policy": "kv",
        "--rate-scale": rate,
        "--seed": seed,
        "--warm-up": 0.05,
        "--jobs": 1,
    }
    return [str(word) for pair in settings.items() for word in pair]


def _mean_of(runs: Iterator[dict[str, Any]]) -> dict[str, float]:
    cells = [_cells(run) for run in runs]
    return {name: sum(each[name] for each in cells) / len(cells) for name in cells[0]}


def _cells(run: Mapping[str, Any]) -> dict[str, float]:
    pools = run.get("pools") or {}
    return {
        "mean": run["ttft_ms"]["mean"],
        "p50": run["ttft_ms"]["p50"],
        "p99": run["ttft_ms"]["p99"],
        "tpot": run["tpot_ms"]["mean"],
        "e2e": run["e2e_ms"]["mean"] / 1000,
        "share": pools.get("hand_over_share") or 0.0,
        "net": pools.get("net_gained_share") or 0.0,
    }


def _row(title: str, speed: str, mode: str, cells: Mapping[str, float]) -> str:
    times = f"{cells['mean']:,.0f} / {cells['p50']:,.0f} / {cells['p99']:,.0f}"
    is_shared = cells["share"] > 0
    share = f"{cells['share']:.0%}" if is_shared else "-"
    net = f"{cells['net']:.0%}" if is_shared else "-"
    tpot, e2e = f"{cells['tpot']:.1f}", f"{cells['e2e']:.1f}"
    return f"| {' | '.join((title, speed, mode, share, times, tpot, e2e, net))} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
