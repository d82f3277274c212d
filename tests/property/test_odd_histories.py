"""Histories that no engine would tell, well-formed as they are: few names, used for everything, on every tier
and in every group. Nothing raises, and every invariant holds after every message."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.feed import KvFeed
from tests.support.vllm_events import batch, cleared

SLOT = 3

names = st.integers(1, 6)
media = st.sampled_from([None, "GPU", "CPU", "DISK"])
kinds = st.sampled_from(["full_attention", "sliding_window", "mamba"])


@st.composite
def groups(draw: st.DrawFn) -> dict[str, object]:
    """Most models have one and do not say so."""
    if draw(st.booleans()):
        return {}
    window = draw(st.sampled_from([None, 5]))
    return {
        "group_idx": draw(st.integers(0, 2)),
        "kv_cache_spec_kind": draw(kinds),
        "kv_cache_spec_sliding_window": window,
    }


@st.composite
def stored_events(draw: st.DrawFn) -> dict[str, object]:
    """Some with the tokens of their blocks, some without."""
    hashes = draw(st.lists(names, min_size=1, max_size=3))
    size = draw(st.sampled_from([1, 4]))
    token_ids = [draw(st.integers(0, 2)) for _ in range(len(hashes) * size)] if draw(st.booleans()) else []
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": draw(st.none() | names),
        "token_ids": token_ids,
        "block_size": size,
        "medium": draw(media),
        "extra_keys": [draw(st.sampled_from([None, ["salt"]]))] + [None] * (len(hashes) - 1),
        **draw(groups()),
    }


removed_events = st.fixed_dictionaries(
    {"type": st.just("BlockRemoved"), "block_hashes": st.lists(names, max_size=3), "medium": media},
    optional={"group_idx": st.integers(0, 2)},
)
events = st.one_of(stored_events(), stored_events(), removed_events, st.just(cleared()))


@settings(max_examples=400)
@given(
    messages=st.lists(st.lists(events, min_size=1, max_size=4), min_size=4, max_size=12),
    hashing=st.sampled_from(["kvgate", "dynamo"]),
    max_bytes=st.sampled_from([1_500, 10_000, 10**9]),
)
def test_odd_histories(messages: list[list[dict]], hashing: str, max_bytes: int) -> None:
    feed = KvFeed(hashing, max_bytes=max_bytes)
    feed.add_publisher(SLOT, engine="vllm", base_model="m", block_tokens=4, can_replay=False)
    for sequence, told in enumerate(messages):
        feed.receive(SLOT, sequence, batch(*told))
        feed.check()
    assert not {"malformed_payload", "malformed_event"} & feed.stats(SLOT).ignored.keys()
