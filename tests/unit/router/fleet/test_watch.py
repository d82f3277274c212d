"""One worker under watch: what a look shows, and when it is asked anew what it is."""

from __future__ import annotations

import pytest

from router.discovery import WorkerSpec
from router.engines.sessions import WorkerSessions
from router.fleet.watch import Sighting, WorkerWatch
from tests.support.certificates import system_trust
from tests.support.fake_worker import FakeWorker

MODELS = b'{"data": [{"id": "m", "owned_by": "vllm", "parent": null}]}'
METRICS = b"""
vllm:cache_config_info{block_size="16",num_gpu_blocks="100",engine="0"} 1.0
vllm:num_requests_running{engine="0"} 3.0
process_start_time_seconds %d
"""


def vllm_answers(*, started: int = 1) -> dict:
    return {
        "GET /v1/models": (200, MODELS),
        "GET /metrics": (200, METRICS % started),
        "GET /version": (200, b'{"version": "0.32.0"}'),
        "GET /health": (200, b""),
        "POST /tokenize": (200, b'{"tokens": [1]}'),
    }


@pytest.fixture
async def sessions():
    async with WorkerSessions(system_trust()) as sessions:
        yield sessions


def watch_of(worker: FakeWorker, sessions: WorkerSessions) -> WorkerWatch:
    spec, headers = WorkerSpec(id="w", url=worker.url), {"authorization": "Bearer k"}
    return WorkerWatch(spec, sessions, headers=headers, timeout_seconds=2.0, health_seconds=10.0)


async def test_the_first_look_identifies_and_the_next_ones_read_gauges(sessions) -> None:
    async with FakeWorker(vllm_answers()) as worker:
        watch = watch_of(worker, sessions)
        assert watch.ranks == ()
        assert await watch.look(0.0) is Sighting.IDENTIFIED
        assert watch.ranks[0].worker.block_tokens == 16
        assert await watch.look(1.0) is Sighting.ALIVE
        assert watch.gauges.running == 3
        assert worker.bodies("/version") == [b""]  # asked once
        assert {headers["authorization"] for _, _, headers, _ in worker.requests} == {"Bearer k"}


async def test_metrics_that_the_probe_could_read_are_read_at_every_look(sessions) -> None:
    answers = vllm_answers()
    answers["GET /metrics"] = (200, METRICS % 1 + b"# filler\n" * (5 << 17))
    async with FakeWorker(answers) as worker:
        watch = watch_of(worker, sessions)
        assert [await watch.look(now) for now in (0.0, 1.0)] == [Sighting.IDENTIFIED, Sighting.ALIVE]
        assert watch.gauges.running == 3


async def test_health_is_asked_at_its_own_pace(sessions) -> None:
    async with FakeWorker(vllm_answers()) as worker:
        watch = watch_of(worker, sessions)
        for now in (0.0, 1.0, 9.0, 10.0, 11.0, 20.0):
            await watch.look(now)
        assert len(worker.bodies("/health")) == 2


@pytest.mark.parametrize("path", ["GET /health", "GET /metrics"])
async def test_a_worker_has_failed_until_it_tells_again_what_it_is(sessions, path) -> None:
    async with FakeWorker(vllm_answers()) as worker:
        watch = watch_of(worker, sessions)
        await watch.look(0.0)
        for now, broken in ((20.0, (500, b"")), (60.0, None)):
            worker.answers[path] = broken
            assert await watch.look(now) is Sighting.FAILED
            assert watch.error
            assert watch.gauges.running is None
            worker.answers = vllm_answers()
            assert await watch.look(now + 20.0) is Sighting.IDENTIFIED
            assert not watch.error


async def test_another_process_is_a_restart_seen_in_the_metrics_or_after_an_absence(sessions) -> None:
    async with FakeWorker(vllm_answers(started=1)) as worker:
        watch = watch_of(worker, sessions)
        await watch.look(0.0)
        worker.answers = vllm_answers(started=2)
        assert await watch.look(1.0) is Sighting.RESTARTED
        assert await watch.look(2.0) is Sighting.ALIVE
        worker.answers["GET /metrics"] = None
        assert await watch.look(3.0) is Sighting.FAILED
        worker.answers = vllm_answers(started=3)
        assert await watch.look(4.0) is Sighting.RESTARTED


async def test_without_a_start_time_an_absence_is_taken_for_a_restart(sessions) -> None:
    untimed = vllm_answers() | {"GET /metrics": (404, b"")}
    async with FakeWorker(dict(untimed)) as worker:
        watch = watch_of(worker, sessions)
        assert await watch.look(0.0) is Sighting.IDENTIFIED
        watch.doubt()
        assert await watch.look(1.0) is Sighting.IDENTIFIED
        worker.answers["GET /health"] = None
        assert await watch.look(20.0) is Sighting.FAILED
        worker.answers = dict(untimed)
        assert await watch.look(21.0) is Sighting.RESTARTED
        assert await watch.look(22.0) is Sighting.ALIVE


async def test_a_doubted_worker_is_asked_anew_what_it_is(sessions) -> None:
    async with FakeWorker(vllm_answers()) as worker:
        watch = watch_of(worker, sessions)
        await watch.look(0.0)
        worker.answers["GET /v1/models"] = (200, MODELS.replace(b'"m"', b'"other"'))
        assert await watch.look(1.0) is Sighting.ALIVE
        watch.doubt()
        assert await watch.look(2.0) is Sighting.IDENTIFIED
        assert watch.ranks[0].worker.base_model == "other"
