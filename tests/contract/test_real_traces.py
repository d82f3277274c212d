"""Real traces: read as their publishers describe them, and routed so that their prefixes are found again."""

from __future__ import annotations

import random
from collections import deque

import orjson
import pytest

from indexer.blocks import HashSpace, Unit
from loadgen.trace_files import read_trace
from loadgen.traces import BLOCK_TOKENS, hit_rate_dealt, statistics_of
from policies import make_policy
from policies.types import RoutingRequest, ServedModel, Worker
from router.core.outcome import Outcome
from router.core.prompt import Prompt
from router.core.routing import RoutingCore
from tests.support.data import data_path

TRACES = ["traces/mooncake-conversation", "traces/mooncake-toolagent-head"]


@pytest.mark.parametrize("name", TRACES)
def test_figures_computed_by_others_are_found_again(name: str) -> None:
    folder = data_path(name)
    published = orjson.loads((folder / "stats.json").read_bytes())
    requests = read_trace(folder)
    statistics = statistics_of(requests)
    assert len(requests) == published["requests"]
    assert statistics.mean_input_tokens == pytest.approx(published["input_length"]["mean"], rel=1e-4)
    assert statistics.median_input_tokens == published["input_length"]["p50"]
    assert statistics.mean_output_tokens == pytest.approx(published["output_length"]["mean"], rel=1e-3)
    assert statistics.ideal_hit_rate == pytest.approx(published["ideal_hit_rate_tokens"], abs=1e-4)
    dealt = published["infinite_cache_hit_rate_tokens_when_spread"]["rr-4"]
    assert hit_rate_dealt(requests, 4) == pytest.approx(dealt, abs=1e-4)


MODEL = "m"
IN_FLIGHT = 16
"""Requests under way at a time: the older ones have ended when a new one comes."""


# Half of the tool agents' prompts share one of a few long beginnings, which every worker soon holds.
@pytest.mark.parametrize(("name", "gain"), [(TRACES[0], 1.3), (TRACES[1], 1.02)])
def test_kv_finds_more_prefixes_again_than_dealing_by_turn_and_stays_balanced(name: str, gain: float) -> None:
    requests = read_trace(data_path(name))[:1000]
    by_turn, spread = hit_rate_and_spread(requests, "round_robin")
    by_kv, kv_spread = hit_rate_and_spread(requests, "kv")
    assert by_turn == pytest.approx(hit_rate_dealt(requests, 4), abs=1e-6)
    assert by_kv > gain * by_turn
    assert kv_spread < 1.25 > spread


def hit_rate_and_spread(requests, policy: str) -> tuple[float, float]:
    """Tokens found again by the four workers that the core routes to, whose caches have no limit; and the
    busiest worker's uncached tokens over the mean."""
    core = RoutingCore(policy=make_policy(policy), predicted_ttl=1e9)
    core.reconcile([worker(f"w{i}") for i in range(4)], now=0.0)
    caches: dict[str, set[int]] = {f"w{i}": set() for i in range(4)}
    uncached = dict.fromkeys(caches, 0)
    under_way: deque[str] = deque()
    hits = 0
    for number, request in enumerate(requests):
        if len(under_way) == IN_FLIGHT:
            core.finish(under_way.popleft(), Outcome.DONE, now=number)
        request_id = str(number)
        chain = request.hash_ids[: request.input_tokens // BLOCK_TOKENS]
        prompt = Prompt(
            request.input_tokens, Unit.TOKENS, {HashSpace(MODEL, BLOCK_TOKENS): chain}, exact=True
        )
        asked = RoutingRequest(
            id=request_id, model=MODEL, num_prompt_tokens=request.input_tokens, stream=True
        )
        holder = core.route(asked, prompt, now=number).worker.id
        if random.Random(number).random() < 0.8:  # most prefills end before the next request comes
            core.first_token(request_id, now=number)
        under_way.append(request_id)
        found = found_again(request, caches[holder])
        hits += found
        uncached[holder] += request.input_tokens - found
    total = sum(request.input_tokens for request in requests)
    return hits / total, max(uncached.values()) * len(uncached) / sum(uncached.values())


def worker(worker_id: str) -> Worker:
    return Worker(
        id=worker_id, url=f"http://{worker_id}", models=(ServedModel(MODEL),), block_tokens=BLOCK_TOKENS
    )


def found_again(request, cache: set[int]) -> int:
    """Tokens of the leading blocks that the cache holds, as the published figures count them."""
    leading = 0
    for hash_id in request.hash_ids:
        if hash_id not in cache:
            break
        leading += 1
    cache.update(request.hash_ids)
    return min(leading * BLOCK_TOKENS, request.input_tokens)
