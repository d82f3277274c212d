"""Recorded vLLM streams through adapter and feed: what the index expects is what the engine reported."""

from __future__ import annotations

import base64

import msgspec
import pytest

from indexer.blocks import TOKEN_BYTES, BlockHash, chain_block_hashes, pack_tokens, root_seed
from indexer.feed import KvFeed
from indexer.trust import TrustLevel
from tests.support.recordings import FIXTURES, Recording, Request, recording

BASE_MODEL = "tiny-llama"

BLOCK_TOKENS = {
    "vllm-0.32.0": 32,
    "vllm-0.32.0-bytes": 32,
    "vllm-0.32.0-block128": 128,
    "vllm-0.32.0-copies": 32,
    "vllm-0.32.0-dp2": 32,
    "vllm-0.23.0": 32,
}

N_2 = "n = 2: the second sample finds what the first has just begun to compute"
PAIR = "two equal prompts at once: one finds what the other has just begun to compute"
FULL_REPORT = "a full report repeated blocks as if they were copies, so their eviction was not believed"
RESET = "a reset is announced with the next request's blocks: until then the index cannot know"

# recording -> request -> (expected, reported, why)
EXCEPTIONS: dict[str, dict[str, tuple[int, int, str]]] = {
    "vllm-0.32.0": {
        "r20": (0, 96, N_2),
        "pair1": (0, 160, PAIR),
        "r32": (224, 0, FULL_REPORT),
        "r42": (224, 0, RESET),
    },
    "vllm-0.32.0-bytes": {
        "r20": (0, 96, N_2),
        "pair1": (0, 160, PAIR),
        "r30": (224, 0, FULL_REPORT),
        "r40": (224, 0, RESET),
    },
    "vllm-0.32.0-block128": {"pair0": (0, 128, PAIR), "r40": (128, 0, RESET)},
    "vllm-0.32.0-copies": {},
    "vllm-0.32.0-dp2": {"after reset rank 0": (96, 0, RESET), "after reset rank 1": (96, 0, RESET)},
    "vllm-0.23.0": {"r20": (0, 96, N_2), "pair1": (0, 160, PAIR), "r40": (224, 0, RESET)},
}


def feed_of(recorded: Recording, *, can_replay: bool = False) -> KvFeed:
    """A feed with one publisher per rank, its slot."""
    feed = KvFeed()
    for rank in recorded.payloads:
        feed.add_publisher(
            rank,
            engine="vllm",
            base_model=BASE_MODEL,
            block_tokens=BLOCK_TOKENS[recorded.name],
            can_replay=can_replay,
            dp_rank=rank,
        )
    return feed


def chain(request: Request, prompt: list[int], block_tokens: int) -> list[BlockHash]:
    adapter = "" if request.model == BASE_MODEL else request.model
    seed = root_seed(BASE_MODEL, adapter=adapter, cache_salt=request.cache_salt)
    return chain_block_hashes(pack_tokens(prompt), block_tokens * TOKEN_BYTES, seed)


def expected_cached_tokens(feed: KvFeed, request: Request, block_tokens: int) -> int:
    """By the index: at least one token must always be computed, and only whole blocks are reused."""
    expected = 0
    for prompt in request.prompts:
        overlap = feed.overlap(chain(request, prompt, block_tokens), 1 << request.rank)
        depth = overlap.device.get(request.rank, 0)
        expected += min(depth, (len(prompt) - 1) // block_tokens) * block_tokens
    return expected


@pytest.mark.parametrize("name", BLOCK_TOKENS)
def test_the_index_expects_what_the_engine_reported(name: str) -> None:
    recorded = recording(name)
    feed = feed_of(recorded)
    wrong = {}
    for requests, messages in recorded.moments():
        for request in requests:
            expected = expected_cached_tokens(feed, request, BLOCK_TOKENS[name])
            if expected != request.cached_tokens:
                wrong[request.id] = (expected, request.cached_tokens)
        for rank, seq in messages:
            assert feed.receive(rank, seq, recorded.payloads[rank][seq]) == []
    assert wrong == {id: (expected, reported) for id, (expected, reported, _) in EXCEPTIONS[name].items()}
    for rank in recorded.payloads:
        assert feed.trust(rank).level is TrustLevel.EXACT
        assert not feed.stats(rank).ignored
        assert not feed.stats(rank).num_orphans
    feed.check()


def test_what_the_recordings_hold() -> None:
    """The exceptions above are few among many, hits and misses."""
    requests = [request for name in BLOCK_TOKENS for request in recording(name).requests]
    num_hits = sum(request.cached_tokens > 0 for request in requests)
    assert (num_hits, len(requests)) == (54, 176)


@pytest.mark.parametrize("name", BLOCK_TOKENS)
def test_a_claim_beyond_the_report_is_dropped(name: str) -> None:
    """With the engine's own report heeded nothing is over-reported twice."""
    recorded = recording(name)
    feed = feed_of(recorded)
    block_tokens = BLOCK_TOKENS[name]
    for requests, messages in recorded.moments():
        for request in requests:
            if expected_cached_tokens(feed, request, block_tokens) > request.cached_tokens:
                hashes = chain(request, request.prompts[0], block_tokens)
                assert feed.truncate(request.rank, hashes[request.cached_tokens // block_tokens :])
                assert expected_cached_tokens(feed, request, block_tokens) == request.cached_tokens
                assert feed.stats(request.rank).num_overreports
        for rank, seq in messages:
            feed.receive(rank, seq, recorded.payloads[rank][seq])
    feed.check()


@pytest.mark.parametrize("name", ["vllm-0.32.0", "vllm-0.23.0"])
def test_a_late_gateway_learns_everything_from_a_replay(name: str) -> None:
    recorded = recording(name)
    direct, replayed = feed_of(recorded), feed_of(recorded, can_replay=True)
    assert [command.from_sequence for command in replayed.connected(0)] == [0]
    for seq, payload in recorded.payloads[0].items():
        direct.receive(0, seq, payload)
        replayed.receive_replay(0, seq, payload)
    assert replayed.replay_ended(0) == []
    assert replayed.trust(0) == direct.trust(0)
    for request in recorded.requests:
        assert expected_cached_tokens(replayed, request, 32) == expected_cached_tokens(direct, request, 32)


@pytest.mark.parametrize("name", ["vllm-0.32.0", "vllm-0.32.0-bytes", "vllm-0.23.0"])
def test_recorded_replay_answers_repeat_the_live_bytes(name: str) -> None:
    """Sequence and payload stand at the end of the frames, with a topic or without."""
    live = recording(name).payloads[0]
    answers = msgspec.json.decode((FIXTURES / name / "replay.json").read_bytes())
    by_name = {answer["name"]: answer for answer in answers}
    frames = [
        [base64.b64decode(frame) for frame in message]
        for message in by_name["from the last four"]["received_b64"]
    ]
    assert frames[-1][-2] == b"\xff" * 8
    assert [(int.from_bytes(message[-2], "big"), message[-1]) for message in frames[:-1]] == [
        (seq, live[seq]) for seq in sorted(live)[-4:]
    ]
