"""Two real vLLM instances on the CPU, and the gateway before them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio
import zmq
import zmq.asyncio

from tests.support.gateway_process import GatewayProcess, running_gateway

MODEL = Path(__file__).parent / "tiny-llama"
BLOCK_TOKENS = 32  # CPU attention accepts multiples of 32 only
NUM_BLOCKS = 256
START_SECONDS = 240.0  # two instances on two cores need about 80 s


@dataclass
class VllmInstance:
    """One engine process group."""

    index: int
    port: int
    events_port: int
    replay_port: int
    environment: Path
    log: Path
    num_ranks: int = 1
    """Data-parallel ranks; rank r publishes `r` ports further."""
    flags: tuple[str, ...] = ()
    """More of `vllm serve`."""
    role: str = "both"
    """As `kvgate serve` names it: `both`, `prefill`, `decode`."""
    variables: dict[str, str] = field(default_factory=dict)
    """More of its process environment."""
    process: asyncio.subprocess.Process | None = None

    @property
    def name(self) -> str:
        """Of its worker."""
        return f"{'engine' if self.role == 'both' else self.role}-{self.index}"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.returncode is None

    async def start(self) -> None:
        events = (
            '{"enable_kv_cache_events": true, "publisher": "zmq", "topic": "", '
            f'"endpoint": "tcp://*:{self.events_port}", '
            f'"replay_endpoint": "tcp://127.0.0.1:{self.replay_port}"}}'
        )
        with self.log.open("wb") as log:
            self.process = await asyncio.create_subprocess_exec(
                str(self.environment / "bin" / "vllm"), "serve", str(MODEL),
                "--served-model-name", "tiny-llama", "--load-format", "dummy",
                "--host", "127.0.0.1", "--port", str(self.port),
                "--dtype", "bfloat16", "--max-model-len", "1024", "--max-num-seqs", "8", "--enforce-eager",
                "--enable-prefix-caching", "--enable-prompt-tokens-details",
                "--block-size", str(BLOCK_TOKENS), "--num-gpu-blocks-override", str(NUM_BLOCKS),
                "--max-num-batched-tokens", "256", "--kv-events-config", events,
                "--data-parallel-size", str(self.num_ranks), *self.flags,
                env={
                    **os.environ,
                    "VLLM_CPU_KVCACHE_SPACE": "1",
                    "VLLM_SERVER_DEV_MODE": "1",
                    "HF_HUB_OFFLINE": "1",
                    "VLLM_CPU_OMP_THREADS_BIND": "|".join(
                        str((self.index + rank) % (os.cpu_count() or 1)) for rank in range(self.num_ranks)
                    ),
                    **self.variables,
                },
                stdout=log, stderr=asyncio.subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    async def until_healthy(self) -> None:
        async with asyncio.timeout(START_SECONDS), aiohttp.ClientSession() as session:
            while True:
                assert self.process is not None
                assert self.process.returncode is None, f"vLLM ended at start: {self.log.read_text()[-2000:]}"
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get(self.url + "/health") as response:
                        if response.status == 200:
                            return
                await asyncio.sleep(0.5)  # polling another process

    async def last_published(self, rank: int = 0) -> int:
        """The engine's own last message number, from its replay socket; -1 for none.

        Asked twice: the thread that answers is the one that publishes, so what was queued before the first
        question is out by the second.
        """
        last = -1
        for _ in range(2):
            for sequence, _payload in await self._replayed(max(last, 0), rank):
                last = sequence
        return last

    async def held_blocks(self) -> set[int]:
        """Hashes of the blocks that its events leave cached."""
        held: set[int] = set()
        for _, payload in await self._replayed(0):
            for event in msgspec.msgpack.decode(payload)[1]:
                match event["type"]:
                    case "BlockStored":
                        held.update(event["block_hashes"])
                    case "BlockRemoved":
                        held.difference_update(event["block_hashes"])
                    case "AllBlocksCleared":
                        held.clear()
        return held

    async def _replayed(self, first: int, rank: int = 0) -> list[tuple[int, bytes]]:
        """Its messages from a number on, those that it keeps."""
        messages = []
        context = zmq.asyncio.Context()
        socket = context.socket(zmq.DEALER)
        socket.rcvhwm = 0
        try:
            socket.connect(f"tcp://127.0.0.1:{self.replay_port + rank}")
            await socket.send_multipart([b"", first.to_bytes(8, "big")])
            while (frames := await socket.recv_multipart())[-2] != b"\xff" * 8:
                messages.append((int.from_bytes(frames[-2], "big"), frames[-1]))
        finally:
            context.destroy(linger=0)
        return messages

    async def kill(self) -> None:
        """The whole process group, at once, as a machine that dies would."""
        if self.process is not None and self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            await self.process.wait()
            self.process._transport.close()  # type: ignore[attr-defined]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def vllm_environment() -> Path:
    environment = Path(os.environ.get("VLLM_ENV", Path(__file__).resolve().parents[2] / ".venv-vllm"))
    if not (environment / "bin" / "vllm").exists():
        pytest.skip(f"no vLLM in {environment}: run `make test-vllm`, or set VLLM_ENV")
    return environment


def instance(index: int, environment: Path, logs: Path, **more: Any) -> VllmInstance:
    """One on free ports, not started; `more` are further fields."""
    ports = (free_port() for _ in range(3))
    return VllmInstance(index, *ports, environment, logs / f"vllm-{index}.log", **more)


@contextlib.asynccontextmanager
async def two_engines(environment: Path, logs: Path, *flags: str) -> AsyncIterator[list[VllmInstance]]:
    """Instances that are up; `flags` are more of `vllm serve`."""
    async with started([instance(i, environment, logs, flags=flags) for i in range(2)]) as instances:
        yield instances


@contextlib.asynccontextmanager
async def started(instances: list[VllmInstance]) -> AsyncIterator[list[VllmInstance]]:
    """All at once, until they are up; killed at the end."""
    try:
        for instance in instances:
            await instance.start()
        for instance in instances:
            await instance.until_healthy()
        yield instances
    finally:
        for instance in instances:
            await instance.kill()


@contextlib.asynccontextmanager
async def gateway_before(
    engines: list[VllmInstance], directory: Path, *flags: str
) -> AsyncIterator[GatewayProcess]:
    """A gateway whose index of these engines is exact; `flags` are more of `kvgate serve`."""
    config = directory / "kvgate.yaml"
    config.write_text(
        "workers:\n"
        + "".join(
            f"  - url: {engine.url}\n"
            f"    name: {engine.name}\n"
            f"    role: {engine.role}\n"
            f"    kv_events: tcp://127.0.0.1:{engine.events_port}\n"
            f"    kv_replay: tcp://127.0.0.1:{engine.replay_port}\n"
            for engine in engines
        )
    )
    async with running_gateway("--config", str(config), "--load-monitor-interval", "0.5", *flags) as process:
        await process.workers(
            until=lambda rows: all((row["trust"] or {}).get("level") == "exact" for row in rows)
        )
        yield process


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engines(
    vllm_environment: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[list[VllmInstance]]:
    async with two_engines(vllm_environment, tmp_path_factory.mktemp("vllm")) as instances:
        yield instances


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(
    engines: list[VllmInstance], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[GatewayProcess]:
    async with gateway_before(engines, tmp_path_factory.mktemp("gateway")) as process:
        yield process


@pytest.fixture
def until_heard(gateway: GatewayProcess, engines: list[VllmInstance]) -> Callable[[], Awaitable[None]]:
    """Waits until the gateway has every event that the engines have published."""

    async def wait() -> None:
        await until_all_heard(gateway, engines)

    return wait


async def until_all_heard(gateway: GatewayProcess, engines: list[VllmInstance]) -> None:
    """Every event that living engines have published has reached the gateway."""
    living = [engine for engine in engines if engine.is_alive]
    published = {engine.name: await engine.last_published() for engine in living}

    def heard(rows: list[dict[str, Any]]) -> bool:
        last = {row["id"]: row["events"]["last_sequence"] for row in rows}
        return all(number < 0 or last[name] == number for name, number in published.items())

    await gateway.workers(until=heard)
