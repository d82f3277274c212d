"""SGLang's adapter against every wire layout that its releases sent, and what a feed makes of them."""

from __future__ import annotations

import msgspec
import pytest

from indexer.adapters import sglang
from indexer.blocks import TOKEN_BYTES, BlockHash, Layout, chain_block_hashes, pack_tokens, root_seed
from indexer.events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent, Tier
from indexer.feed import KvFeed
from indexer.trust import TrustLevel
from tests.support.sglang_events import cleared, pages, pairs, removed, stored
from tests.support.vllm_events import batch

TOKENS = [7, 8, 9, 10]
PROMPT = list(range(12))

# release -> events as that release encodes them, all of page -5
LAYOUTS = {
    "0.4.7": (["BlockStored", [-5], None, TOKENS, 4, None], ["BlockRemoved", [-5]], ["AllBlocksCleared"]),
    "0.5.9": (
        ["BlockStored", [-5], None, TOKENS, 4, None, "GPU"],
        ["BlockRemoved", [-5], "GPU"],
        ["AllBlocksCleared"],
    ),
    "0.5.21": (stored([-5], TOKENS, session_id="s-1"), removed(-5), cleared()),
    "0.5.21 optional fields left out": (
        {
            "type": "BlockStored",
            "block_hashes": [-5],
            "token_ids": TOKENS,
            "block_size": 4,
            "parent_block_hash": None,
            "lora_id": None,
        },
        {"type": "BlockRemoved", "block_hashes": [-5]},
        cleared(),
    ),
    "0.5.23": (stored([-5], TOKENS, session_id="s-1"), removed(-5), cleared()),
    "a later one": (stored([-5], TOKENS, field_of_the_future=[1]), removed(-5), cleared()),
    "a later array": (
        ["BlockStored", [-5], None, TOKENS, 4, None, "GPU", "new"],
        ["BlockRemoved", [-5], "GPU", "new"],
        ["AllBlocksCleared", "new"],
    ),
}


def only(event: object) -> tuple[list[KvEvent], list[str]]:
    decoded = sglang.decode(batch(event))
    return list(decoded.events), list(decoded.ignored)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rank", [None, 3])
def test_every_layout(layout: str, rank: int | None) -> None:
    decoded = sglang.decode(batch(*LAYOUTS[layout], timestamp=12.5, rank=rank))
    assert decoded.events == [
        BlockStored([-5], None, TOKENS, 4),
        BlockRemoved([-5]),
        AllBlocksCleared(),
    ]
    assert (decoded.timestamp, decoded.dp_rank, decoded.ignored) == (12.5, rank, [])


def test_the_rank_may_be_left_out() -> None:
    decoded = sglang.decode(msgspec.msgpack.encode([1.0, [removed(1)]]))
    assert (decoded.events, decoded.dp_rank) == ([BlockRemoved([1])], None)


@pytest.mark.parametrize(
    ("medium", "tier"),
    [("GPU", Tier.DEVICE), ("CPU_PINNED", Tier.HOST), ("DISK", Tier.DISK)],
)
def test_tiers(medium: str, tier: Tier) -> None:
    for event in (stored([1], TOKENS, medium=medium), removed(1, medium=medium)):
        [decoded], ignored = only(event)
        assert decoded.tier is tier
        assert ignored == []


def test_identity_is_named_from_0_5_23_on() -> None:
    [event], _ = only(stored([1], TOKENS, cache_salt="tenant", lora_name="alpha"))
    assert (event.cache_salt, event.adapter) == ("tenant", "alpha")


def test_token_pairs_are_tokens_with_a_lookahead_of_one() -> None:
    [event], _ = only(stored([1, 2], pairs(range(9))))
    assert (event.token_ids, event.lookahead_tokens) == (list(range(9)), 1)


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (stored([1], TOKENS, medium="EXTERNAL"), "external"),
        (removed(1, medium="EXTERNAL"), "external"),
        (stored([1], TOKENS, medium="TAPE"), "medium"),
        (stored([1, 2], TOKENS), "token_count"),
        (stored([1], TOKENS, page_size=0), "token_count"),
        (stored([1], [(1, 2), (2, 3), (4, 5), (5, 6)]), "token_pairs"),
        (stored([1], [1, 2, 3, (3, 4)]), "token_pairs"),
        (stored([1], [(1, 2, 3)] * 4), "malformed_event"),
        ({"type": "BlockStored", "block_hashes": "text"}, "malformed_event"),
        ({"type": "BlockFrozen"}, "unknown_event"),
    ],
    ids=str,
)
def test_ignored_by_reason(event: object, reason: str) -> None:
    assert only(event) == ([], [reason])


def test_a_removal_that_cannot_be_read_may_mean_any_block() -> None:
    assert only(["BlockRemoved", 5]) == ([AllBlocksCleared()], ["malformed_removal"])


def test_events_beyond_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang, "EVENT_BLOCKS", 1)
    assert only(stored([1, 2], TOKENS * 2)) == ([], ["too_large"])
    assert only(removed(1, 2)) == ([AllBlocksCleared()], ["too_large"])


# What a feed makes of them.


class Worker:
    """One SGLang worker of a feed."""

    def __init__(self, *, page_size: int = 4, lookahead: int = 0) -> None:
        self.feed = KvFeed()
        self.sequence = -1
        self.feed.add_publisher(
            0,
            engine="sglang",
            base_model="m",
            block_tokens=page_size,
            lookahead_tokens=lookahead,
            can_replay=False,
        )

    def publish(self, *events: object) -> None:
        self.sequence += 1
        self.feed.receive(0, self.sequence, batch(*events))

    def depth(self, hashes: list[BlockHash]) -> int:
        return self.feed.overlap(hashes, 1).device.get(0, 0)


def chain(*, page_size: int = 4, lookahead: int = 0, adapter: str = "", salt: str = "") -> list[BlockHash]:
    seed = root_seed("m", adapter=adapter, cache_salt=salt)
    page_bytes, lookahead_bytes = page_size * TOKEN_BYTES, lookahead * TOKEN_BYTES
    return chain_block_hashes(pack_tokens(PROMPT), page_bytes, seed, (), lookahead_bytes)


@pytest.mark.parametrize("medium", [None, "GPU"])
def test_one_event_for_each_page(medium: str | None) -> None:
    worker = Worker()
    worker.publish(*pages([-1, 2, -3], PROMPT, medium=medium))
    assert worker.depth(chain()) == 3
    worker.publish(["BlockRemoved", [-3]], ["BlockRemoved", [2]])
    assert worker.depth(chain()) == 1


def test_joined_events() -> None:
    worker = Worker()
    worker.publish(stored([-1, 2, -3], PROMPT), removed(-3, 2))
    assert worker.depth(chain()) == 1


def test_pages_of_one_token() -> None:
    worker = Worker(page_size=1)
    worker.publish(*pages(range(1, 13), PROMPT, page_size=1))
    assert worker.depth(chain(page_size=1)) == 12
    assert worker.feed.layout(0) == Layout(1)


def test_a_page_stored_again_is_no_second_copy() -> None:
    worker = Worker()
    worker.publish(stored([1, 2, 3], PROMPT), stored([3], PROMPT[8:], parent=2), removed(3))
    assert worker.depth(chain()) == 2


def test_a_page_on_two_media() -> None:
    worker = Worker()
    worker.publish(stored([1, 2, 3], PROMPT), stored([3], PROMPT[8:], parent=2, medium="CPU_PINNED"))
    worker.publish(removed(3))
    scores = worker.feed.overlap(chain(), 1)
    assert (scores.device, scores.host) == ({0: 2}, {0: 1})


def test_salts_and_adapters_never_meet() -> None:
    """The same holds for `format: dynamo`, which differs in the hashes alone."""
    worker = Worker()
    worker.publish(
        stored([1], PROMPT[:4]),
        stored([2, 3], PROMPT[:8], cache_salt="tenant"),
        stored([4], PROMPT[8:], parent=3, cache_salt="tenant"),
        stored([5, 6], PROMPT[:8], lora_name="alpha"),
    )
    assert worker.depth(chain()) == 1
    assert worker.depth(chain(salt="tenant")) == 3
    assert worker.depth(chain(adapter="alpha")) == 2
    assert worker.depth(chain(adapter="alpha", salt="tenant")) == 0


def test_token_pairs_meet_prompts_that_are_hashed_with_what_follows() -> None:
    """EAGLE: a page is complete, and shared, only with the token behind it."""
    worker = Worker(lookahead=1)
    worker.publish(*pages([1, 2], pairs(PROMPT)))
    assert worker.feed.layout(0) == Layout(4, 1)
    assert worker.feed.trust(0).level is TrustLevel.EXACT
    hashes = chain(lookahead=1)
    assert len(hashes) == 2, "nothing is known of the token behind the third"
    assert worker.depth(hashes) == 2
    assert worker.depth(chain()) == 0


def test_token_pairs_that_nobody_expected() -> None:
    worker = Worker()
    worker.publish(stored([1, 2], pairs(range(9))))
    assert worker.feed.trust(0).level is TrustLevel.DEGRADED
    assert worker.feed.trust(0).reason == (
        "worker stores blocks of 4 tokens hashed with the 1 after them, "
        "prompts are cut into blocks of 4 tokens"
    )
    worker.feed.expect(0, Layout(4, 1))
    assert worker.depth(chain(lookahead=1)) == 2
