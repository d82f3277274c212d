"""The load client, `kvgate load` and `kvgate demo` over real sockets and processes."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import socket
import sys
from time import perf_counter

import msgspec
import psutil
import pytest

from loadgen.children import Child, ChildError, free_ports
from loadgen.client import LoadRequest, chat_requests, run_load
from loadgen.engine import EngineSettings
from loadgen.mock_worker import MockFleet
from loadgen.mock_worker import main as mock_main
from loadgen.traces import TraceRequest
from loadgen.workload import synthesize
from tests.support.waiting import eventually

FAST = EngineSettings(speedup=200.0)
TRACE_LINE = b'{"timestamp": 0, "input_length": 600, "output_length": 4, "hash_ids": [0, %d]}\n'


def requests_of(count, *, tokens=600, output=4):
    trace = [TraceRequest(i / 100, tokens, output, [0, i + 1]) for i in range(count)]
    return chat_requests(trace, 1.0, prefix="t", model="mock")


async def test_a_load_measures_every_request():
    async with MockFleet(1, engine=FAST) as fleet:
        seen = []
        results = await run_load(fleet.workers[0].url, requests_of(20), seen.append)
    assert [result.id for result in results] == [f"t-{i}" for i in range(20)]
    assert sorted(result.id for result in seen) == sorted(result.id for result in results)
    for result in results:
        assert result.error is None
        assert result.status == 200
        assert 0 < result.ttft <= result.duration
        assert 1 + len(result.token_gaps) == result.completion_tokens == 4
        assert result.prompt_tokens == 610, "600 words, and what the chat template adds"
    assert results[0].cached_tokens == 0
    assert results[-1].cached_tokens == 512


async def test_requests_leave_at_their_times():
    async with MockFleet(1, engine=FAST) as fleet:
        started = perf_counter()
        await run_load(fleet.workers[0].url, requests_of(11))
        assert perf_counter() - started > 0.095, "ten gaps of 10 ms, timers of whole milliseconds"


async def test_what_goes_wrong_is_told():
    async with MockFleet(2, engine=FAST) as fleet:
        cut, refusing = fleet.workers
        await cut.fault("error_mid_stream", after_tokens=2)
        await refusing.fault("refuse")
        (cut_result,) = await run_load(cut.url, requests_of(1))
        (refused,) = await run_load(refusing.url, requests_of(1))
        (unknown,) = await run_load(cut.url, [LoadRequest(id="x", send_at=0.0, path="/nothing", body=b"{}")])
        url = cut.url
    (gone,) = await run_load(url, requests_of(1))
    assert "closed" in cut_result.error
    assert (refused.status, refused.error) == (503, "status 503: refused")
    assert unknown.status == 404
    assert gone.error


async def test_a_whole_answer_is_no_stream_and_a_stream_need_not_tell_usage():
    body = msgspec.json.encode({"prompt": "baba", "max_tokens": 2})
    streamed = msgspec.json.encode({"prompt": "baba", "max_tokens": 2, "stream": True})
    async with MockFleet(1, engine=FAST) as fleet:
        loads = [
            LoadRequest(id="x", send_at=0.0, path="/v1/completions", body=each) for each in (body, streamed)
        ]
        whole, without_usage = await run_load(fleet.workers[0].url, loads)
    assert "[DONE]" in whole.error
    assert without_usage.error is None
    assert without_usage.ttft > 0
    assert without_usage.prompt_tokens is without_usage.cached_tokens is None


async def run(*arguments, **options):
    """Exit code, standard output and error of a `kvgate` command."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "router", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, **options,
    )  # fmt: skip
    output, errors = await asyncio.wait_for(process.communicate(), 50)
    return process.returncode, output.decode(), errors.decode()


async def test_load_prints_its_figures(tmp_path):
    trace = tmp_path / "trace.jsonl"
    trace.write_bytes(b"".join(TRACE_LINE % i for i in range(1, 9)))
    async with MockFleet(1, engine=FAST) as fleet:
        url = fleet.workers[0].url
        code, output, _ = await run("load", "--url", url, "--trace", str(trace), "--json")
        assert code == 0
        (figures,) = msgspec.json.decode(output)
        assert (figures["num_requests"], figures["num_errors"]) == (8, 0)
        assert figures["hit_rate"] > 0.5
        code, output, _ = await run("load", "--url", url, "--requests", "3", "--rate-scale", "100")
        assert code == 0
        assert output.splitlines()[2].split()[:3] == ["load", "3", "0"]
        await fleet.workers[0].fault("refuse")
        code, _, errors = await run("load", "--url", url, "--trace", str(trace), "--model", "mock")
        assert code == 1
        assert "error: status 503" in errors


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (["--url", "localhost"], 2, "http://HOST:PORT"),
        (["--url", "http://127.0.0.1:9", "--rate-scale", "0"], 2, "above 0"),
        (["--url", "http://127.0.0.1:9", "--requests", "0"], 2, "at least 1"),
        (["--url", "http://127.0.0.1:9", "--requests", "1"], 1, "kvgate load: "),
        (["--url", "http://127.0.0.1:9", "--trace", "absent.jsonl"], 1, "absent.jsonl"),
    ],
)
async def test_load_says_what_is_wrong(arguments, code, what):
    ended, _, errors = await run("load", *arguments)
    assert ended == code
    assert what in errors


def test_mock_says_when_a_port_is_taken(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert mock_main(["--num-workers", "1", "--port", port, "--events-port", "0"]) == 1
    assert "can't listen" in capsys.readouterr().err


async def test_a_child_that_ends_is_told_with_its_log(tmp_path):
    async with Child("gateway", ["serve", "--policy", "nonsense"], tmp_path / "log") as child:
        with pytest.raises(ChildError, match=r"(?s)gateway: ended with code \d.*nonsense"):
            await child.ready(never)


async def never():
    return False


async def test_a_child_ends_with_its_block(tmp_path):
    log = tmp_path / "log"
    before = set(psutil.Process().children())
    async with Child("mock", ["mock", "--port", "0", "--events-port", "0"], log) as child:
        await child.ready(lambda: asyncio.sleep(0, "ready" in log.read_text()))
        (process,) = set(psutil.Process().children()) - before
    assert not process.is_running()


def test_ports_that_are_taken_are_not_free():
    base = free_ports((0, 7))
    with socket.create_server(("127.0.0.1", base)), pytest.raises(OSError, match="in use"):
        socket.create_server(("127.0.0.1", base)).close()


def small_trace(path):
    """Twelve requests of four conversations, written as a trace."""
    requests = synthesize(12, random.Random(3))
    with path.open("wb") as file:
        for request in requests:
            line = {
                "timestamp": request.arrival_seconds * 1000, "input_length": request.input_tokens,
                "output_length": min(request.output_tokens, 20), "hash_ids": request.hash_ids,
            }  # fmt: skip
            file.write(msgspec.json.encode(line) + b"\n")
    return path


async def test_demo_compares_policies_and_explains(tmp_path):
    trace = small_trace(tmp_path / "trace.jsonl")
    before = set(psutil.Process().children(recursive=True))
    code, output, errors = await run(
        "demo", "--trace", str(trace), "--policies", "round_robin,kv", "--num-workers", "2"
    )
    assert (code, errors) == (0, ""), output
    lines = output.splitlines()
    rows = {words[0]: words for line in lines if len(words := line.split()) > 8}
    assert rows["round_robin"][1:3] == rows["kv"][1:3] == ["12", "0"]
    assert any(line.startswith("kv: request kv-") and " blocks; cost " in line for line in lines)
    assert "behind their model's time" in output
    assert set(psutil.Process().children(recursive=True)) <= before


async def test_demo_leaves_nothing_behind_when_interrupted(tmp_path):
    trace = small_trace(tmp_path / "trace.jsonl")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "router", "demo", "--trace", str(trace), "--policies", "kv",
        "--num-workers", "1", stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    demo = psutil.Process(process.pid)
    try:
        # The mock fleet and the gateway are there.
        await eventually(lambda: len(demo.children()) == 2, within=30.0)
        children = demo.children()
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), 20) == 130
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    assert not any(child.is_running() for child in children)


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (["--policies", "random,best"], 2, "unknown policy 'best'; known: random, round_robin"),
        (["--requests", "1"], 2, "at least 2"),
        (["--num-workers", "0"], 2, "1 to"),
        (["--trace", "absent.jsonl"], 1, "absent.jsonl"),
    ],
)
async def test_demo_says_what_is_wrong(arguments, code, what):
    ended, output, errors = await run("demo", *arguments)
    assert ended == code
    assert what in output + errors
