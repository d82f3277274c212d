"""Clients and workers that misbehave at random, by a seed: afterwards nothing is booked, held or open."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from pathlib import Path

import pytest

from router.tls import server_context
from tests.support.certificates import pair_files, worker_trust
from tests.support.raw_worker import (
    END_OF_CHUNKS,
    STREAM_HEAD,
    RawWorker,
    WorkerSide,
    chunk,
    event,
    json_answer,
)
from tests.support.relay import Gateway, RawClient, gateway, post
from tests.support.waiting import eventually

STREAM = STREAM_HEAD + b"".join(chunk(event(str(n))) for n in range(20)) + END_OF_CHUNKS
NUM_CLIENTS = 60


def misbehaving(rng: random.Random):
    """A script that answers well, badly, in part, or not at all."""

    async def script(side: WorkerSide) -> None:
        data = rng.choice([STREAM, json_answer(b"x" * 5000)])
        fate = rng.random()
        if fate < 0.5:
            await side.send(data)
        elif fate < 0.8:
            await side.send(data[: rng.randrange(len(data))])
            side.reset() if fate < 0.7 else side.close()
        elif fate < 0.9:
            await side.send(rng.randbytes(50))
            await side.peer_left()
        else:
            await side.peer_left()

    return script


async def misbehave(client: RawClient, rng: random.Random) -> None:
    """Requests on one connection, with a departure somewhere."""
    for _ in range(rng.randrange(1, 6)):
        data = post(rng.randbytes(rng.randrange(3000)))
        await client.send(data[: rng.randrange(1, len(data))] if rng.random() < 0.1 else data)
        if rng.random() < 0.15:
            await asyncio.sleep(0)
            return
        async with asyncio.timeout(rng.choice([0.05, 1.0])):
            await client.answer()


async def come_and_go(running: Gateway, rng: random.Random) -> None:
    async with running.client() as client:
        with contextlib.suppress(TimeoutError, asyncio.IncompleteReadError, OSError, ValueError):
            await misbehave(client, rng)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("over_tls", [False, True])
async def test_nothing_is_left_behind(
    seed: int, over_tls: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(seed)
    files = pair_files(tmp_path)
    tls = server_context(files.cert, files.key) if over_tls else None
    script = misbehaving(rng)
    limits = {"first_byte_seconds": 0.2, "idle_seconds": 0.2, "linger_seconds": 0.1}
    async with (
        RawWorker(script, tls=tls) as a,
        RawWorker(script, tls=tls) as b,
        RawWorker(script, tls=tls) as c,
        gateway(a, b, c, tls=tls, worker_tls=worker_trust(tmp_path), **limits) as running,
    ):
        await asyncio.gather(*(come_and_go(running, rng) for _ in range(NUM_CLIENTS)))
        await running.at_rest()
        assert len(a.requests) + len(b.requests) + len(c.requests) > NUM_CLIENTS // 2
        pool = running.proxy.upstream
        await eventually(
            lambda: a.num_open + b.num_open + c.num_open <= pool.num_idle, what="no stray connection"
        )
        assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
