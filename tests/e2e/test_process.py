"""`kvgate serve` as a process: start, what it prints, signals, exit codes."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from loadgen.engine import EngineSettings
from loadgen.mock_process import MockWorker
from loadgen.mock_worker import MockFleet
from router.app import Signals
from tests.support.certificates import PairFiles, client_context, pair_files
from tests.support.gateway_process import REPOSITORY, running_gateway
from tests.support.serving import serving
from tests.support.tokenizers import TINY, encoder
from tests.support.waiting import eventually


def endpoints(worker: MockWorker) -> list[str]:
    return ["--kv-events", worker.events_endpoint, "--kv-replay", worker.replay_endpoint]


async def serve_and_fail(*arguments: str) -> tuple[int, str]:
    """Runs `kvgate serve` until it ends by itself: exit code and what it printed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "router", "serve", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd=REPOSITORY,
    )  # fmt: skip
    printed, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, printed.decode()


async def test_each_worker_is_described_in_one_line() -> None:
    engine = EngineSettings(block_tokens=32, num_blocks=500, speedup=50.0)
    async with MockFleet(1, engine=engine) as fleet:
        (worker,) = fleet.workers
        async with running_gateway("--worker-urls", worker.url, *endpoints(worker)) as gateway:
            line = (await gateway.printed("worker 127.*vLLM")).string
            assert await image_health_check(gateway.port) == 0
            for part in ("vLLM 0.32.0", "serves mock", "blocks of 32 tokens", "500 KV blocks", "index exact"):
                assert part in line
            assert await gateway.stop() == 0


async def image_health_check(port: int, **environment: str) -> int:
    """The exit code of what the image calls to see whether it is alive."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "deploy/healthcheck.py",
        cwd=REPOSITORY, env={**os.environ, "KVGATE_PORT": str(port), **environment},
    )  # fmt: skip
    return await process.wait()


def break_pair(files: PairFiles) -> None:
    Path(files.cert).write_text("half a certificate")


async def test_tls_is_served_and_its_certificate_read_anew(tmp_path: Path) -> None:
    files = pair_files(tmp_path)
    arguments = ("--tls-cert", files.cert, "--tls-key", files.key, "--worker-insecure")
    async with (
        running_gateway(*arguments) as gateway,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session,
    ):
        assert gateway.url.startswith("https://")
        await gateway.printed("WARNING.*certificates of https workers are not checked")
        get = partial(session.get, gateway.url + "/health", ssl=client_context())
        async with get() as response:
            assert response.status == 200
        assert await image_health_check(gateway.port, KVGATE_TLS_CERT=files.cert) == 0
        break_pair(files)
        await gateway.printed("ERROR.*certificate for clients: .*stays in force")
        async with get() as response:
            assert response.status == 200
        pair_files(tmp_path, "elsewhere.test")
        await gateway.printed("INFO.*certificate for clients: loaded anew")
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await get()
        assert await gateway.stop() == 0


async def test_sigterm_lets_a_stream_end_and_exits_with_0() -> None:
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(MockFleet(1, engine=EngineSettings(speedup=2.0)))
        gateway = await stack.enter_async_context(running_gateway("--worker-urls", fleet.workers[0].url))
        await gateway.printed("index predicted")
        async with aiohttp.ClientSession() as session:
            body = {"model": "mock", "prompt": "a b c", "max_tokens": 60, "stream": True}
            async with session.post(gateway.url + "/v1/completions", json=body) as response:
                received = await response.content.readany()
                gateway.process.send_signal(signal.SIGTERM)
                await gateway.printed("stopping")
                received += await response.content.read()
        assert received.count(b"data: ") == 61
        assert received.endswith(b"data: [DONE]\n\n")
        assert await gateway.process.wait() == 0


async def test_a_second_signal_ends_at_once() -> None:
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(MockFleet(1, engine=EngineSettings()))
        arguments = ("--worker-urls", fleet.workers[0].url, "--drain-timeout", "60")
        gateway = await stack.enter_async_context(running_gateway(*arguments))
        await gateway.printed("index predicted")
        async with aiohttp.ClientSession() as session:
            body = {"model": "mock", "prompt": "a b c", "max_tokens": 50_000, "stream": True}
            async with session.post(gateway.url + "/v1/completions", json=body) as response:
                await response.content.readany()
                gateway.process.send_signal(signal.SIGTERM)
                await gateway.printed("stopping")
                gateway.process.send_signal(signal.SIGTERM)
                async with asyncio.timeout(10):
                    assert await gateway.process.wait() == 0
        await gateway.printed("some streams were cut")


async def test_a_second_signal_with_nothing_in_flight_has_cut_nothing() -> None:
    async with serving([], until_ready=False) as client:
        signals, ending = Signals(), asyncio.get_running_loop().create_future()
        hurries = []

        def hurry() -> bool:
            hurries.append(client.gateway.hurry())
            return hurries[-1]

        os.kill(os.getpid(), signal.SIGTERM)
        await signals.first.wait()
        stopping = asyncio.ensure_future(signals.unless_again(ending, hurry=hurry))
        await asyncio.sleep(0)  # it has begun to wait
        os.kill(os.getpid(), signal.SIGTERM)
        await eventually(lambda: hurries)
        ending.set_result(True)
        assert await stopping, "all ended in order"
        assert hurries == [False]


async def test_every_mistake_is_reported_before_anything_starts() -> None:
    code, printed = await serve_and_fail(
        "--worker-urls", "ftp://a", "--policy", "kw", "--kv-temperature", "-1", "--max-body", "lots"
    )  # fmt: skip
    assert code == 2
    for mistake in ("ftp://a", "kw", "--kv-temperature", "--max-body"):
        assert mistake in printed
    assert re.search(r"\b4 mistakes", printed)


async def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, printed = await serve_and_fail("--host", "127.0.0.1", "--port", port, "--admin-port", "0")
    assert code == 1
    assert "can't start" in printed
    assert port in printed
    assert "already in use" in printed


async def test_local_tokens_from_start_to_explanation() -> None:
    async with MockFleet(1, engine=EngineSettings(speedup=50.0)) as fleet:
        (worker,) = fleet.workers
        flags = ("--tokens", "local", "--tokenizer", str(TINY))
        async with running_gateway("--worker-urls", worker.url, *endpoints(worker), *flags) as gateway:
            await gateway.printed(rf"all models: tokens by {TINY}: chats and texts, cut at 4 special tokens")
            await gateway.workers(until=lambda rows: rows and rows[0]["state"] == "healthy")
            async with aiohttp.ClientSession(gateway.url) as client:
                body = {"model": "mock", "prompt": "hello there", "max_tokens": 1}
                async with client.post("/v1/completions", json=body) as response:
                    assert response.status == 200
            (decision,) = (await gateway.admin("/explain"))["decisions"]
            assert decision["num_prompt_tokens"] == len(encoder("tiny").encode_whole("hello there"))
            assert decision["details"]["unit"] == "tokens"


async def test_a_tokenizer_of_no_use_is_no_start(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    code, printed = await serve_and_fail("--tokenizer", str(tmp_path))
    assert code == 2
    assert f"--tokenizer: {tmp_path}/tokenizer.json is no tokenizer: " in printed


async def test_a_template_that_does_not_compile_is_no_start(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("{% if %}")
    code, printed = await serve_and_fail(
        "--port", "0", "--admin-port", "0", "--tokenizer", str(TINY), "--chat-template", str(tmp_path / "t")
    )
    assert code == 2
    assert "can't start: " in printed
    assert "Traceback" not in printed
