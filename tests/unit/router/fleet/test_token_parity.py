"""Tokens of probes: how often workers are asked, and what is said of those that differ."""

from __future__ import annotations

import contextlib

import orjson
import pytest
import zmq

import router.fleet.token_parity
from indexer.parity import Check
from indexer.trust import Verdict
from policies import make_policy
from router.config import Settings
from router.core.routing import RoutingCore
from router.discovery import StaticSource, WorkerSpec
from router.engines.sessions import WorkerSessions
from router.fleet import Fleet
from router.wire.endpoints import Protocol
from tests.support.certificates import system_trust
from tests.support.fake_worker import FakeWorker
from tests.support.waiting import eventually

METRICS = b'\nvllm:cache_config_info{block_size="16",num_gpu_blocks="100",engine="0"} 1.0\n'
TEXTS = {1: "<s>", 7: "Hello"}


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Tokenizer:
    """A source that knows the tokens of probes by itself."""

    def __init__(self, ids) -> None:
        self.ids = ids

    def tokens_of_probe(self, model: str, protocol: Protocol = Protocol.CHAT):
        return self.ids


def vllm_worker(*ids: int, chat_status: int = 200) -> FakeWorker:
    def tokenize(body: bytes):
        asked = orjson.loads(body)
        if "messages" in asked and chat_status != 200:
            return chat_status, b"{}"
        texts = [TEXTS.get(each, "?") for each in ids] if asked.get("return_token_strs") else None
        return 200, orjson.dumps({"tokens": ids, "token_strs": texts})

    return FakeWorker(
        {
            "GET /v1/models": (200, b'{"data": [{"id": "m", "owned_by": "vllm", "parent": null}]}'),
            "GET /health": (200, b""),
            "GET /version": (200, b'{"version": "0.32.0"}'),
            "GET /metrics": (200, METRICS),
            "POST /tokenize": tokenize,
        }
    )


def num_probes(worker: FakeWorker) -> int:
    return sum(b"return_token_strs" in body for body in worker.bodies("/tokenize"))


@contextlib.asynccontextmanager
async def fleet_of(*workers: FakeWorker, source: object, clock: Clock | None = None):
    core = RoutingCore(policy=make_policy("kv"))
    context = zmq.Context.instance()
    settings = Settings(load_monitor_interval=0.01, health_check_interval_secs=0.01)
    specs = [
        WorkerSpec(id=f"w{i}", url=worker.url, kv_events=f"tcp://127.0.0.1:{i + 1}")
        for i, worker in enumerate(workers)
    ]
    async with WorkerSessions(system_trust()) as sessions:
        fleet = Fleet(
            core=core, settings=settings, sessions=sessions, context=context, clock=clock or Clock()
        )
        fleet.compare_tokens_with(source)
        fleet.start(StaticSource(specs))
        try:
            yield fleet
        finally:
            await fleet.stop()


def finding(fleet: Fleet, worker_id: str = "w0"):
    parity = fleet.core.parity(worker_id)
    findings = list(parity.findings(Check.TOKENS).values()) if parity is not None else []
    return findings[0] if findings else None


async def looks(worker: FakeWorker, num: int) -> None:
    """So many more looks at the worker."""
    before = len(worker.requests)
    await eventually(lambda: len(worker.requests) >= before + num, what="it is looked at")


async def test_equal_tokens_agree_and_are_asked_for_again_after_minutes() -> None:
    clock = Clock()
    async with vllm_worker(1, 7) as worker, fleet_of(worker, source=Tokenizer([1, 7]), clock=clock) as fleet:
        await eventually(lambda: finding(fleet), what="compared")
        assert finding(fleet).evidence.verdict is Verdict.AGREES
        await looks(worker, 10)
        assert num_probes(worker) == 2, "a chat and a text, once"
        clock.now += router.fleet.token_parity.TOKEN_PARITY_SECONDS
        await eventually(lambda: num_probes(worker) == 4, what="asked again")


async def test_what_differs_is_named_with_the_worker_s_own_spelling_and_mended() -> None:
    clock, source = Clock(), Tokenizer([7])
    async with vllm_worker(1, 7) as worker, fleet_of(worker, source=source, clock=clock) as fleet:
        await eventually(lambda: finding(fleet), what="compared")
        assert finding(fleet).note == "the worker's prompt starts with token 1 (<s>), ours does not"
        assert finding(fleet).evidence.verdict is Verdict.DIFFERS
        source.ids = [1, 7]
        clock.now += router.fleet.token_parity.TOKEN_PARITY_RETRY_SECONDS
        await eventually(lambda: finding(fleet).evidence.verdict is Verdict.AGREES, what="mended")


async def test_a_worker_alone_is_asked_once_and_compared_when_another_joins() -> None:
    clock = Clock()
    async with (
        vllm_worker(1, 7) as one,
        vllm_worker(1, 7) as other,
        fleet_of(one, source=object(), clock=clock) as fleet,
    ):
        await eventually(lambda: finding(fleet), what="looked at")
        assert "no other worker" in finding(fleet).note
        for _ in range(3):
            clock.now += router.fleet.token_parity.TOKEN_PARITY_RETRY_SECONDS
            await looks(one, 5)
        assert num_probes(one) == 2
        await fleet.add_worker(other.url, name="w1", kv_events="tcp://127.0.0.1:2")
        await eventually(
            lambda: all(
                finding(fleet, each) and finding(fleet, each).evidence.verdict is Verdict.AGREES
                for each in ("w0", "w1")
            ),
            what="each is compared with the other",
        )
        assert num_probes(one) == 2


@pytest.mark.parametrize(
    ("worker", "verdict", "note"),
    [
        (vllm_worker(1, 7, chat_status=400), Verdict.AGREES, ""),
        (
            FakeWorker({**vllm_worker().answers, "POST /tokenize": (404, b"{}")}),
            Verdict.OPEN,
            "the worker offers no /tokenize",
        ),
    ],
    ids=["a base model without a chat template", "no /tokenize"],
)
async def test_workers_that_cannot_be_asked_everything(worker, verdict, note) -> None:
    async with worker, fleet_of(worker, source=Tokenizer([1, 7])) as fleet:
        await eventually(lambda: finding(fleet), what="looked at")
        assert (finding(fleet).evidence.verdict, finding(fleet).note) == (verdict, note)
