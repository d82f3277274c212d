"""How workers are reached: certificates, Unix sockets, IPv6; by the relay and by everything else alike."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import orjson
import pytest
import trustme

from router.app import Gateway
from router.config import Settings, WorkerConfig
from router.tls import server_context
from tests.support.certificates import PairFiles, ca_file, pair_files, worker_trust
from tests.support.fake_worker import FakeWorker
from tests.support.raw_worker import RawWorker, answering, json_answer
from tests.support.relay import Gateway as RelayGateway
from tests.support.relay import gateway, post
from tests.support.serving import at_rest, counted, row_of
from tests.support.waiting import eventually

COMPLETION = b'{"object":"text_completion"}'


def vllm_answers() -> dict[str, tuple[int, bytes]]:
    """As much of vLLM as the gateway asks for."""
    model = {"id": "m", "object": "model", "owned_by": "vllm", "max_model_len": 100}
    metrics = b"vllm:num_requests_running 3.0\nvllm:num_requests_waiting 1.0\n"
    return {
        "GET /v1/models": (200, orjson.dumps({"object": "list", "data": [model]})),
        "GET /version": (200, b'{"version":"0.32.0"}'),
        "GET /health": (200, b""),
        "GET /metrics": (200, metrics),
        "POST /tokenize": (200, b'{"count":3,"max_model_len":100,"tokens":[1,2,3]}'),
        "POST /v1/completions": (200, COMPLETION),
    }


def server_tls(files: PairFiles, *, wants_client: bool = False) -> ssl.SSLContext:
    context = server_context(files.cert, files.key)
    if wants_client:
        context.load_verify_locations(str(Path(files.cert).parent / "ca.pem"))
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@contextlib.asynccontextmanager
async def serving(url: str, **options: object) -> AsyncIterator[Gateway]:
    """The whole gateway before a worker that asks for tokens and reads metrics, as soon as it has joined."""
    settings = {
        "host": "127.0.0.1", "port": 0, "admin_port": 0, "workers": (WorkerConfig(url=url),),
        "tokens": "engine", "load_monitor_interval": 0.05, **options,
    }  # fmt: skip
    running = Gateway(Settings(**settings))
    await running.start()
    try:
        await eventually(running.fleet.is_ready, what="the worker joins")
        yield running
        await at_rest(running)
    finally:
        await running.stop(0.0)


async def complete(running: Gateway) -> tuple[int, bytes, str | None]:
    """Status, body, and who answered."""
    body = {"model": "m", "prompt": "p"}
    url = f"http://127.0.0.1:{running.port}/v1/completions"
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
        return response.status, await response.read(), response.headers.get("x-kvgate-worker")


async def check_every_kind_of_call(worker: FakeWorker, running: Gateway, worker_id: str, host: str) -> None:
    """Probes, metrics, tokenization and the relay reach the worker, under the right name."""
    assert await complete(running) == (200, COMPLETION, worker_id)
    assert counted(running, "kvgate_token_fallbacks_total") == 0
    await eventually(lambda: row_of(running, worker_id)["engine_gauges"]["running"] == 3)
    asked = {path for _, path, _, _ in worker.requests}
    assert {"/v1/models", "/version", "/metrics", "/tokenize", "/v1/completions"} <= asked
    assert {headers["host"] for _, _, headers, _ in worker.requests} == {host}


async def test_https_worker_for_every_kind_of_call(tmp_path: Path) -> None:
    tls = server_tls(pair_files(tmp_path))
    async with (
        FakeWorker(vllm_answers(), tls=tls) as worker,
        serving(worker.url, worker_ca=ca_file(tmp_path)) as running,
    ):
        where = worker.url.removeprefix("https://")
        await check_every_kind_of_call(worker, running, where, where)


async def test_worker_behind_a_unix_socket_for_every_kind_of_call(tmp_path: Path) -> None:
    path = str(tmp_path / "w.sock")
    async with FakeWorker(vllm_answers(), url=f"unix:{path}") as worker, serving(worker.url) as running:
        await check_every_kind_of_call(worker, running, path, "localhost")
        admin = f"http://127.0.0.1:{running.admin_port}"
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{admin}/workers/{path.replace('/', '%2F')}") as response:
                assert (await response.json())["worker"]["url"] == f"unix:{path}"
            async with session.post(f"{admin}/remove_worker", params={"url": f"unix:{path}"}) as response:
                assert response.status == 200


async def test_worker_that_wants_a_certificate_for_every_kind_of_call(tmp_path: Path) -> None:
    ca = ca_file(tmp_path)
    tls = server_tls(pair_files(tmp_path), wants_client=True)
    client = pair_files(tmp_path, "gateway.test", prefix="client")
    options = {"worker_ca": ca, "worker_cert": client.cert, "worker_key": client.key}
    async with FakeWorker(vllm_answers(), tls=tls) as worker, serving(worker.url, **options) as running:
        where = worker.url.removeprefix("https://")
        await check_every_kind_of_call(worker, running, where, where)


async def test_insecure_takes_any_certificate(tmp_path: Path) -> None:
    tls = server_tls(pair_files(tmp_path, "elsewhere.test", ca=trustme.CA()))
    async with FakeWorker(vllm_answers(), tls=tls) as worker, serving(worker.url, worker_insecure=True) as it:
        assert (await complete(it))[0] == 200


@pytest.mark.parametrize("trusted", [True, False])
async def test_certificate_that_does_not_convince(tmp_path: Path, trusted: bool) -> None:
    """Of another host, or of an unknown authority: neither the relay nor a probe says a word to it."""
    files = pair_files(tmp_path, "elsewhere.test") if trusted else pair_files(tmp_path, ca=trustme.CA())
    why = "IP address mismatch" if trusted else "unable to get local issuer certificate"
    tls = server_tls(files)
    async with (
        RawWorker(answering(json_answer()), tls=tls) as worker,
        gateway(worker, worker_tls=worker_trust(tmp_path)) as relaying,
    ):
        answer = await relaying.ask(post())
        assert (answer.status, b'"connect_failed"' in answer.body) == (502, True)
        assert f"its certificate is not trusted: {why}" in answer.body.decode()
        assert relaying.fleet.suspected == [worker.id]
        settings = Settings(host="127.0.0.1", port=0, admin_port=0, worker_urls=(worker.url,))
        probing = Gateway(settings)
        await probing.start()
        try:
            await eventually(lambda: "is not trusted" in (row_of(probing, worker.id).get("error") or ""))
        finally:
            await probing.stop(0.0)
        assert worker.requests == []


async def test_name_of_the_worker_is_told_in_the_handshake(tmp_path: Path) -> None:
    names: list[str | None] = []
    tls = server_tls(pair_files(tmp_path))
    tls.sni_callback = lambda connection, name, context: names.append(name)
    async with RawWorker(answering(json_answer()), tls=tls) as worker:
        url = f"https://localhost:{worker.port}"
        async with gateway(url, worker_tls=worker_trust(tmp_path)) as running:
            assert (await running.ask(post())).status == 200
        assert worker.requests[0].values("host") == [f"localhost:{worker.port}".encode()]
    assert names == ["localhost"]


async def test_worker_that_refuses_our_certificate_is_a_failed_worker(tmp_path: Path) -> None:
    ca_file(tmp_path)
    tls = server_tls(pair_files(tmp_path), wants_client=True)
    async with (
        RawWorker(answering(json_answer()), tls=tls) as worker,
        gateway(worker, worker_tls=worker_trust(tmp_path)) as running,
    ):
        assert (await running.ask(post())).status == 502
        assert worker.requests == []


# Unix sockets


async def test_relay_over_a_unix_socket_keeps_its_connection(tmp_path: Path) -> None:
    async with RawWorker(answering(json_answer()), path=str(tmp_path / "w.sock")) as worker:
        async with gateway(worker) as running, running.client() as client:
            for _ in range(3):
                await client.send(post())
                answer = await client.answer()
                assert answer.value("x-kvgate-worker") == str(tmp_path / "w.sock")
            client.leave()
        assert [side.num_requests for side in worker.sides] == [3]
        assert worker.requests[0].values("host") == [b"localhost"]


async def test_socket_that_is_not_there_is_a_refused_connection(tmp_path: Path) -> None:
    async with gateway(f"unix:{tmp_path / 'none.sock'}") as running:
        answer = await running.ask(post())
        assert (answer.status, b'"connect_failed"' in answer.body) == (502, True)
        assert running.fleet.suspected == [str(tmp_path / "none.sock")]


# IPv6


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return True
    return False


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")


@needs_ipv6
async def test_worker_with_an_ipv6_address() -> None:
    async with RawWorker(answering(json_answer()), host="::1") as worker, gateway(worker) as running:
        answer = await running.ask(post())
        assert (answer.status, answer.value("x-kvgate-worker")) == (200, f"[::1]:{worker.port}")
        assert worker.requests[0].values("host") == [f"[::1]:{worker.port}".encode()]


@needs_ipv6
@pytest.mark.parametrize(("host", "reached"), [("::", ["127.0.0.1", "::1"]), ("::1", ["::1"])])
async def test_listening_on_ipv6(host: str, reached: list[str]) -> None:
    """`::` is dual stack; other addresses are what they say."""
    async with RawWorker(answering(json_answer())) as worker, gateway(worker, host=host) as running:
        assert [address for address in ("127.0.0.1", "::1") if await answers(running, address)] == reached


async def answers(running: RelayGateway, host: str) -> bool:
    try:
        async with running.client(host) as client:
            await client.send(post())
            return (await client.answer()).status == 200
    except ConnectionRefusedError:
        return False


async def test_burst_of_handshakes_over_one_unix_socket_and_one_https_worker(tmp_path: Path) -> None:
    tls = server_tls(pair_files(tmp_path))
    async with (
        RawWorker(answering(json_answer()), path=str(tmp_path / "w.sock")) as near,
        RawWorker(answering(json_answer()), tls=tls) as far,
        gateway(near, far, worker_tls=worker_trust(tmp_path)) as running,
    ):
        found = await asyncio.gather(*(running.ask(post()) for _ in range(100)))
        assert {answer.status for answer in found} == {200}
        assert len(near.requests) == len(far.requests) == 50
