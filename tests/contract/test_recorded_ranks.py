"""A recorded vLLM server of two data-parallel ranks, from its answers to a probe to what is cached."""

from __future__ import annotations

import pytest

from indexer.blocks import TOKEN_BYTES, HashSpace, Unit, chain_block_hashes, pack_tokens, root_seed
from policies import make_policy
from policies.types import RoutingRequest
from router.core.outcome import Outcome
from router.core.prompt import Prompt
from router.core.routing import RoutingCore
from router.discovery import WorkerSpec
from router.engines import WorkerSessions, probe
from router.engines.http import WorkerHttp
from router.fleet.ranks import ranks_of
from tests.support.certificates import system_trust
from tests.support.fake_worker import FakeWorker
from tests.support.recordings import FIXTURES, Request, recording

MODEL = "tiny-llama"
RECORDED = recording("vllm-0.32.0-dp2")
ANNOUNCED_LATE = {"after reset rank 0", "after reset rank 1"}
"""vLLM tells of a reset with its next message only, which these requests cause."""


@pytest.fixture
async def core() -> RoutingCore:
    folder = FIXTURES / "http" / "vllm-0.32.0"
    answers = {
        "GET /v1/models": (200, (folder / "models.json").read_bytes()),
        "GET /version": (200, (folder / "version.json").read_bytes()),
        "GET /metrics": (200, (folder / "metrics_dp2.txt").read_bytes()),
    }
    async with FakeWorker(answers) as worker, WorkerSessions(system_trust()) as sessions:
        facts = await probe(WorkerHttp(sessions, worker.url))
    spec = WorkerSpec(id="w", url="http://h:8121", kv_events="tcp://h:5657")
    core = RoutingCore(policy=make_policy("kv"))
    core.reconcile([rank.worker for rank in ranks_of(spec, facts)], now=0.0)
    for view in core.workers():
        core.feed.connected(view.slot)
    return core


def prompt_of(request: Request) -> Prompt:
    (tokens,) = request.prompts
    seed = root_seed(MODEL, cache_salt=request.cache_salt)
    chain = chain_block_hashes(pack_tokens(tokens), 32 * TOKEN_BYTES, seed)
    return Prompt(len(tokens), Unit.TOKENS, {HashSpace(MODEL, 32): chain}, exact=True)


def test_the_server_is_two_workers(core):
    assert [(view.worker.id, view.worker.dp_rank) for view in core.workers()] == [("w@0", 0), ("w@1", 1)]


def test_what_each_rank_reports_is_expected_of_it(core):
    """Sent to the rank that the recording was sent to, every request was cached as its events say."""
    compared = 0
    for asked, messages in RECORDED.moments():
        for request in asked:
            other = f"w@{1 - request.rank}"
            decision = core.route(
                RoutingRequest(id=request.id, model=MODEL), prompt_of(request), now=0.0, exclude={other}
            )
            core.finish(request.id, Outcome.WORKER_FAILED, now=0.0)
            if request.label not in ANNOUNCED_LATE:
                assert decision.expected_cached_tokens == request.cached_tokens, request.label
                compared += 1
        for rank, sequence in messages:
            slot = core.slot_of(f"w@{rank}")
            core.feed.receive(slot, sequence, RECORDED.payloads[rank][sequence])
    assert compared == len(RECORDED.requests) - len(ANNOUNCED_LATE) > 8
    core.check()


def test_frames_of_the_other_rank_are_refused_whole(core):
    slot = core.slot_of("w@0")
    for sequence, payload in RECORDED.payloads[1].items():
        assert core.feed.receive(slot, sequence, payload) == []
    stats = core.feed.stats(slot)
    assert stats.ignored == {"other_rank": len(RECORDED.payloads[1])}
    assert (stats.num_blocks, stats.last_sequence) == (0, None)
