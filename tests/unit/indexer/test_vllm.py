"""vLLM's adapter against every wire layout that its releases sent."""

from __future__ import annotations

import msgspec
import pytest

from indexer import limits
from indexer.adapters import reading, vllm
from indexer.adapters.errors import MalformedFrame
from indexer.events import AllBlocksCleared, BlockRemoved, BlockStored, GroupKind, KvEvent, Tier
from tests.support.vllm_events import batch, cleared, removed, stored

TOKENS = [7, 8, 9, 10]

# release -> (events as that release encodes them, the hash they name)
LAYOUTS = {
    "0.9.2": (["BlockStored", [-5], None, TOKENS, 4, None], ["BlockRemoved", [-5]], -5),
    "0.10.2": (["BlockStored", [5], None, TOKENS, 4, None, "GPU"], ["BlockRemoved", [5], "GPU"], 5),
    "0.10.2 bytes": (
        ["BlockStored", [b"\xff" * 32], None, TOKENS, 4, None, "GPU"],
        ["BlockRemoved", [b"\xff" * 32], "GPU"],
        b"\xff" * 32,
    ),
    "0.14.1": (["BlockStored", [5], None, TOKENS, 4, None, "GPU", None], ["BlockRemoved", [5], "GPU"], 5),
    "0.17.1": (
        ["BlockStored", [5], None, TOKENS, 4, None, "GPU", None, [None]],
        ["BlockRemoved", [5], "GPU"],
        5,
    ),
    "0.20.2": (
        ["BlockStored", [5], None, TOKENS, 4, None, "GPU", None, [None], 0],
        ["BlockRemoved", [5], "GPU", 0],
        5,
    ),
    "0.22.1": (
        ["BlockStored", [5], None, TOKENS, 4, None, "GPU", None, [None], 0, "full_attention", None],
        ["BlockRemoved", [5], "GPU", 0],
        5,
    ),
    "0.24.0": (stored([2**64 - 1], TOKENS), removed(2**64 - 1), 2**64 - 1),
    "0.24.0 defaults left out": (
        {
            "type": "BlockStored",
            "block_hashes": [5],
            "parent_block_hash": None,
            "token_ids": TOKENS,
            "block_size": 4,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
        },
        {"type": "BlockRemoved", "block_hashes": [5], "medium": "GPU"},
        5,
    ),
    "0.26.0": (stored([5], TOKENS, locality="LOCAL"), removed(5, locality="LOCAL"), 5),
    "0.29.0": (
        stored([5], TOKENS, locality="LOCAL", ownership="host"),
        removed(5, locality="LOCAL", ownership="host"),
        5,
    ),
    "0.30.0": (stored([5], TOKENS, session_id="s-1"), removed(5), 5),
    "0.33.0": (stored([5], TOKENS, lookahead_token_ids=None), removed(5), 5),
    "a later one": (
        stored([5], TOKENS, field_of_the_future={"a": [1]}),
        removed(5, field_of_the_future=1),
        5,
    ),
    "a later array": (
        ["BlockStored", [5], None, TOKENS, 4, None, "GPU", None, [None], 0, "full_attention", None, "new"],
        ["BlockRemoved", [5], "GPU", 0, "new"],
        5,
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(layout: str) -> None:
    store, remove, engine_hash = LAYOUTS[layout]
    clear = cleared() if isinstance(store, dict) else ["AllBlocksCleared"]
    decoded = vllm.decode(batch(store, remove, clear, timestamp=12.5, rank=3))
    kind = GroupKind.UNTOLD if layout == "0.20.2" else GroupKind.FULL
    assert decoded.events == [
        BlockStored([engine_hash], None, TOKENS, 4, kind=kind),
        BlockRemoved([engine_hash]),
        AllBlocksCleared(),
    ]
    assert (decoded.timestamp, decoded.dp_rank, decoded.ignored) == (12.5, 3, [])


@pytest.mark.parametrize(
    "payload",
    [
        msgspec.msgpack.encode([1.0, [removed(1)]]),
        msgspec.msgpack.encode([1, [removed(1)], None]),
        msgspec.msgpack.encode([1.0, [removed(1)], None, "a later field"]),
        msgspec.msgpack.encode({"ts": 1.0, "events": [removed(1)], "data_parallel_rank": None}),
        msgspec.msgpack.encode({"ts": 1.0, "events": [["BlockRemoved", [1], "GPU"]]}),
    ],
    ids=["two elements", "whole seconds", "four elements", "a map", "a map with arrays"],
)
def test_forms_of_a_batch(payload: bytes) -> None:
    decoded = vllm.decode(payload)
    assert decoded.events == [BlockRemoved([1])]
    assert (decoded.timestamp, decoded.dp_rank) == (1.0, None)


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xc1", b"garbage", msgspec.msgpack.encode("text"), msgspec.msgpack.encode([1.0]), b"\x93\xcb"],
)
def test_what_is_no_batch_is_malformed(payload: bytes) -> None:
    with pytest.raises(MalformedFrame):
        vllm.decode(payload)


def test_a_payload_beyond_the_bound_is_not_even_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "PAYLOAD_BYTES", 10)
    with pytest.raises(MalformedFrame, match="more than 10"):
        vllm.decode(batch(removed(1)))


def only(event: object) -> tuple[list[KvEvent], list[str]]:
    decoded = vllm.decode(batch(event))
    return list(decoded.events), list(decoded.ignored)


@pytest.mark.parametrize(
    ("medium", "tier"),
    [
        (None, Tier.DEVICE),
        ("GPU", Tier.DEVICE),
        ("CPU", Tier.HOST),
        ("cpu", Tier.HOST),
        ("CPU_PINNED", Tier.HOST),
        ("DISK", Tier.DISK),
        ("STORAGE", Tier.DISK),
    ],
)
def test_tiers(medium: str | None, tier: Tier) -> None:
    for event in (stored([1], TOKENS, medium=medium), removed(1, medium=medium)):
        [decoded], ignored = only(event)
        assert decoded.tier is tier
        assert ignored == []


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (stored([1], TOKENS, medium="EXTERNAL"), "external"),
        (removed(1, medium="EXTERNAL"), "external"),
        (stored([1], TOKENS, medium="TAPE"), "medium"),
        (removed(1, medium="TAPE"), "medium"),
        (stored([1], TOKENS, locality="REMOTE"), "remote"),
        (removed(1, locality="REMOTE"), "remote"),
        (stored([1], TOKENS, kv_cache_spec_kind="cross_attention"), "attention_group"),
        (stored([1], TOKENS, kv_cache_spec_kind="encoder_only_attention"), "attention_group"),
        (stored([1], TOKENS, lookahead_token_ids=[[11], [12]]), "lookahead"),
        (stored([1], TOKENS, lookahead_token_ids=[[11] * 5]), "lookahead"),
        (stored([1, 2], TOKENS * 2, lookahead_token_ids=[[8], [11]]), "lookahead"),
        (stored([1, 2], TOKENS * 2, lookahead_token_ids=[None, [11]]), "lookahead"),
        (stored([1, 2], TOKENS), "token_count"),
        (stored([1], TOKENS, block_tokens=0), "token_count"),
        (stored([1], TOKENS, block_size=-4), "token_count"),
        ({"type": "BlockStored", "block_hashes": "text"}, "malformed_event"),
        ({"type": "BlockFrozen"}, "unknown_event"),
        ({"no": "type"}, "unknown_event"),
        (["BlockFrozen", 1], "unknown_event"),
        ([], "unknown_event"),
        ("text", "unknown_event"),
        ([["BlockStored"]], "unknown_event"),
    ],
    ids=str,
)
def test_ignored_by_reason(event: object, reason: str) -> None:
    assert only(event) == ([], [reason])


@pytest.mark.parametrize(
    "event", [{"type": "BlockRemoved"}, ["BlockRemoved", 5], ["BlockRemoved", [None]]], ids=str
)
def test_a_removal_that_cannot_be_read_may_mean_any_block(event: object) -> None:
    assert only(event) == ([AllBlocksCleared()], ["malformed_removal"])


@pytest.mark.parametrize(
    ("fields", "kind", "window"),
    [
        ({"kv_cache_spec_kind": "full_attention"}, GroupKind.FULL, 0),
        ({"kv_cache_spec_kind": "mla_attention"}, GroupKind.FULL, 0),
        ({"kv_cache_spec_kind": "sink_full_attention"}, GroupKind.FULL, 0),
        ({"kv_cache_spec_kind": "chunked_local_attention"}, GroupKind.FULL, 0),
        ({"kv_cache_spec_kind": "one of the future"}, GroupKind.FULL, 0),
        (
            {"kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 128},
            GroupKind.WINDOW,
            128,
        ),
        (
            {"kv_cache_spec_kind": "sliding_window_mla", "kv_cache_spec_sliding_window": 8},
            GroupKind.WINDOW,
            8,
        ),
        ({"kv_cache_spec_kind": "sliding_window"}, GroupKind.FULL, 0),
        ({"kv_cache_spec_kind": "mamba"}, GroupKind.STATE, 0),
        ({"kv_cache_spec_kind": None}, GroupKind.UNTOLD, 0),
        ({"kv_cache_spec_kind": None, "group_idx": None}, GroupKind.FULL, 0),
    ],
    ids=str,
)
def test_kinds_of_groups(fields: dict, kind: GroupKind, window: int) -> None:
    [event], _ = only(stored([1], TOKENS, **{"group_idx": 2, **fields}))
    assert (event.kind, event.window_tokens) == (kind, window)
    assert event.group == (fields.get("group_idx", 2) or 0)


@pytest.mark.parametrize("kind", ["sliding_window", "mamba"])
def test_groups_that_skip_blocks_only_name_the_others(kind: str) -> None:
    """The tokens are those of all blocks, and nothing says which were skipped."""
    fields = {"kv_cache_spec_kind": kind, "kv_cache_spec_sliding_window": 8, "group_idx": 1}
    [event], ignored = only(stored([3], TOKENS * 3, extra_keys=[None], **fields))
    assert (event.block_hashes, event.token_ids, event.block_tokens, ignored) == ([3], [], 4, [])


def test_lookahead_continues_the_tokens() -> None:
    [event], _ = only(stored([1, 2], [*TOKENS, *TOKENS], lookahead_token_ids=[[7, 8], [11, 12]]))
    assert event.token_ids == [*TOKENS, *TOKENS, 11, 12]
    assert event.lookahead_tokens == 2


def test_events_beyond_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert limits.EVENT_BLOCKS >= 1_000_000 // 16
    monkeypatch.setattr(vllm, "EVENT_BLOCKS", 1)
    assert only(stored([1, 2], TOKENS * 2)) == ([], ["too_large"])
    assert only(removed(1, 2)) == ([AllBlocksCleared()], ["too_large"])
    monkeypatch.setattr(vllm, "EVENT_TOKENS", 3)
    assert only(stored([1], TOKENS)) == ([], ["too_large"])


@pytest.mark.parametrize("block_size", [4, 0])
def test_offloaded_blocks_come_without_tokens(block_size: int) -> None:
    [event], _ = only(stored([1, 2], [], medium="CPU", block_size=block_size))
    assert event == BlockStored([1, 2], None, [], block_size, Tier.HOST)


@pytest.mark.parametrize(
    ("fields", "adapter"),
    [
        ({"lora_name": "alpha", "lora_id": 1, "extra_keys": [["alpha"]]}, "alpha"),
        ({"lora_id": 2}, "lora_id 2"),
        ({}, ""),
    ],
)
def test_adapters_go_by_name(fields: dict, adapter: str) -> None:
    [event], _ = only(stored([1], TOKENS, **fields))
    assert (event.adapter, event.cache_salt, event.extra) == (adapter, "", ())


@pytest.mark.parametrize(
    ("fields", "salt", "extra"),
    [
        ({"extra_keys": [["s"], None]}, "s", []),
        ({"extra_keys": [["alpha", "s"], ["alpha"]], "lora_name": "alpha"}, "s", []),
        ({"extra_keys": [["alpha", "alpha"], ["alpha"]], "lora_name": "alpha"}, "alpha", []),
        ({"extra_keys": [None, None]}, "", []),
        ({"extra_keys": []}, "", []),
        ({"extra_keys": [["s", ["img", 0]], [["img", -4]]]}, "s", [[["img", 0]], [["img", -4]]]),
        ({"extra_keys": [None, [["img", 0]]]}, "", [None, [["img", 0]]]),
        ({"extra_keys": [["s"]], "parent": 9}, "", [["s"], None]),
    ],
    ids=str,
)
def test_salt_and_media(fields: dict, salt: str, extra: list) -> None:
    """The salt stands in the first block of a prompt; what remains identifies the block itself."""
    [event], _ = only(stored([1, 2], TOKENS * 2, **fields))
    encoded = [msgspec.msgpack.encode(keys) if keys else b"" for keys in extra]
    assert (event.cache_salt, list(event.extra)) == (salt, encoded)
