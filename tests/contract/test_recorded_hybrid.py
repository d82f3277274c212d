"""A real engine with a hybrid model (sliding windows and full attention), request by request: what the index
expects to be cached is what the engine reported."""

from __future__ import annotations

from indexer.blocks import TOKEN_BYTES, BlockHash, chain_block_hashes, pack_tokens, root_seed
from indexer.feed import KvFeed
from indexer.trust import TrustLevel
from tests.support.recordings import Request, recording

MODEL = "tiny-gemma"
BLOCK_TOKENS = 32


def chain(request: Request) -> list[BlockHash]:
    packed = pack_tokens(request.prompts[0])
    return chain_block_hashes(packed, BLOCK_TOKENS * TOKEN_BYTES, root_seed(MODEL))


def cached_tokens(depth: int, request: Request) -> int:
    return min(depth, (len(request.prompts[0]) - 1) // BLOCK_TOKENS) * BLOCK_TOKENS


def test_hits_are_as_long_as_both_groups_support() -> None:
    recorded = recording("vllm-0.32.0-hybrid")
    feed = KvFeed()
    feed.add_publisher(0, engine="vllm", base_model=MODEL, block_tokens=BLOCK_TOKENS, can_replay=False)
    expected, by_full_attention_alone = {}, {}
    for requests, messages in recorded.moments():
        for request in requests:
            hashes = chain(request)
            expected[request.id] = cached_tokens(feed.overlap(hashes, 1).device.get(0, 0), request)
            by_full_attention_alone[request.id] = cached_tokens(
                feed.index.match(hashes, 1).get(0, 0), request
            )
        for rank, seq in messages:
            assert feed.receive(rank, seq, recorded.payloads[rank][seq]) == []
        feed.check()
    reported = {request.id: request.cached_tokens for request in recorded.requests}
    assert expected == reported
    assert sum(tokens > 0 for tokens in reported.values()) == 10

    overpromised = {id for id, tokens in by_full_attention_alone.items() if tokens > reported[id]}
    assert overpromised == {"r03", "r04", "r16", "r17", "r25"}, "the windows' blocks were gone or never kept"
    stats = feed.stats(0)
    assert stats.num_orphans == stats.num_orphans_adopted, "names that came before their blocks"
    assert (feed.trust(0).level, stats.ignored) == (TrustLevel.EXACT, {})
