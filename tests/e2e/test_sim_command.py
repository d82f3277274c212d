"""`kvgate sim` as it is typed."""

from __future__ import annotations

import lzma
import re

import msgspec
import pytest

from loadgen.engine_profiles import PROFILES
from loadgen.sim.command import main
from tests.tidy.sources import ROOT

LINE = b'{"timestamp": %d, "input_length": 1100, "output_length": 9, "hash_ids": [0, 1, %d]}\n'
SESSION = (
    b'{"id": "a", "block_size": 64, "requests": [{"in": 200, "out": 5, "hash_ids": [1, 2, 3]},'
    b' {"in": 300, "out": 5, "hash_ids": [1, 2, 3, 4], "think_time": 2.0}]}\n'
)
AZURE = b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"".join(LINE % (number * 40, number + 2) for number in range(60)))
    return path


def simulate(tmp_path, *arguments):
    out = tmp_path / "out.json"
    assert main([*map(str, arguments), "--json", str(out)]) == 0
    figures = msgspec.json.decode(out.read_bytes())
    for each in figures:
        assert each.pop("wall_s") > 0
    return figures


def test_one_array_in_the_order_of_the_policies(tmp_path, trace, capsys):
    policies = ["--policy", "kv,prefill_load_scale=32", "--policy", "round_robin", "--policy", "random"]
    arguments = ["--trace", trace, *policies, "--num-workers", 4, "--rate-scale", 2, "--seed", 3]
    found = simulate(tmp_path, *arguments)
    assert [each["policy"] for each in found] == ["kv,prefill_load_scale=32", "round_robin", "random"]
    for each in found:
        assert (each["num_workers"], each["seed"], each["num_requests"]) == (4, 3, 60)
        assert 0 < each["hit_rate"] <= each["ideal_hit_rate"] < 1
        assert each["ttft_ms"]["p50"] <= each["ttft_ms"]["p90"] <= each["ttft_ms"]["p99"]
        assert each["imbalance"] >= 1
    assert "hit rate" in capsys.readouterr().out
    assert simulate(tmp_path, *arguments, "--jobs", 1) == found, "a seed decides, not the processes"


def test_one_run_for_each_mode(tmp_path, trace, capsys):
    arguments = ["--trace", trace, "--policy", "kv", "--prefill", 1, "--decode", 2, "--num-workers", 1]
    modes = ["--disagg", "never,always", "--disagg", "conditional", "--decode-policy", "least_loaded"]
    found = simulate(tmp_path, *arguments, *modes, "--transfer-gbps", 200)
    assert [each["pools"]["mode"] for each in found] == ["never", "always", "conditional"]
    assert {each["num_workers"] for each in found} == {4}
    never, always, _conditional = (each["pools"] for each in found)
    assert (never["hand_over_share"], never["transferred_tokens"], never["remote"]) == (0, 0, {})
    assert always["hand_over_share"] > 0
    assert list(always["remote"]) == ["always"]
    assert "1 prefill and 2 decode workers, 1 whole ones, 200 Gbit/s" in capsys.readouterr().out


def test_pools_without_whole_workers_by_default(tmp_path, trace):
    (found,) = simulate(tmp_path, "--trace", trace, "--policy", "kv", "--prefill", 1, "--decode", 2)
    assert (found["num_workers"], found["pools"]["mode"]) == (3, "conditional")


def test_a_closed_loop(tmp_path, trace):
    (one,) = simulate(tmp_path, "--trace", trace, "--policy", "kv", "--concurrency", 1)
    (four,) = simulate(tmp_path, "--trace", trace, "--policy", "kv", "--concurrency", 4)
    assert one["simulated_s"] > 2 * four["simulated_s"]


def test_trouble_with_events_and_workers(tmp_path, trace):
    arguments = ["--event-loss", 0.2, "--no-event-replay", "--event-delay-ms", 50]
    (found,) = simulate(
        tmp_path, "--trace", trace, "--policy", "kv", *arguments, "--restart-every", 5, "--downtime", 1
    )
    assert found["num_requests"] == 60


@pytest.mark.parametrize(("name", "content"), [("azure.csv", AZURE), ("sessions.jsonl.xz", SESSION)])
def test_other_formats(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(lzma.compress(content) if name.endswith("xz") else content)
    (found,) = simulate(tmp_path, "--trace", path, "--policy", "kv")
    assert found["num_requests"] == content.count(b'"in"') + content.count(b",374,")


def test_what_no_worker_can_hold_is_left_out(tmp_path, trace, capsys):
    path = tmp_path / "with_a_long_one.jsonl"
    long = b'{"timestamp": 0, "input_length": 3000, "output_length": 9, "hash_ids": [1, 2, 3, 4, 5, 6]}\n'
    path.write_bytes(long + trace.read_bytes())
    (found,) = simulate(tmp_path, "--trace", path, "--policy", "kv", "--capacity-tokens", 2560)
    assert found["num_requests"] == 60
    assert "left out: 1 requests" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (["--policy", "kv"], 2, "--trace"),
        (["--trace", "absent.jsonl"], 1, "absent.jsonl"),
        (["--trace", "t", "--policy", "best"], 2, "unknown policy 'best'; known: random"),
        (["--trace", "t", "--policy", "kv,temperature=-1"], 2, "temperature"),
        (["--trace", "t", "--rate-scale", "0"], 2, "above 0"),
        (["--trace", "t", "--event-loss", "1"], 2, "from 0 up to"),
        (["--trace", "t", "--engine", "warp"], 2, "70b"),
        (["--trace", "t", "--disagg", "auto"], 2, "--disagg needs pools"),
        (["--trace", "t", "--prefill", "1"], 2, "nobody answers"),
        (["--trace", "t", "--num-workers", "0"], 2, "nobody answers"),
        (["--trace", "t", "--disagg", "auto,perhaps"], 2, "known: conditional, always, never, auto"),
        (["--trace", "t", "--disagg-ratio", "2"], 2, "from 0 to 1"),
        (["--trace", "t", "--decode-policy", "best"], 2, "unknown policy 'best'"),
    ],
)
def test_what_is_wrong_is_said(capsys, arguments, code, what):
    try:
        ended = main(arguments)
    except SystemExit as exit:
        ended = exit.code
    assert ended == code
    assert what in capsys.readouterr().err


def test_the_page_has_every_option_and_engine(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    options = set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out)) - {"--help"}
    page = (ROOT / "docs/simulator.md").read_text()
    rows = re.findall(r"^\| (`--[^|]+)\|", page, re.MULTILINE)
    assert options == {option for row in rows for option in re.findall(r"--[a-z-]+", row)}
    profiles = page.partition("| profile |")[2].partition("\n\n")[0]
    assert list(PROFILES) == re.findall(r"^\| `([a-z0-9-]+)`", profiles, re.MULTILINE)


def test_nothing_fits(trace, capsys):
    assert main(["--trace", str(trace), "--capacity-tokens", "1024"]) == 1
    assert "no request fits into a cache of" in capsys.readouterr().err
