"""What a block depends on besides tokens, under hashes that need it once and such that need it always."""

from __future__ import annotations

import pytest

from indexer import namespaces
from indexer.blocks import HASHINGS, TOKEN_BYTES, BlockHash, pack_tokens
from indexer.feed import KvFeed
from tests.support.vllm_events import batch, cleared, removed, stored

PROMPT = list(range(12))


def chain(hashing: str, *, adapter: str = "", salt: str = "") -> list[BlockHash]:
    root = HASHINGS[hashing].root("m", adapter=adapter, cache_salt=salt)
    return HASHINGS[hashing].chain(pack_tokens(PROMPT), 4 * TOKEN_BYTES, root)


class Worker:
    def __init__(self, hashing: str) -> None:
        self.feed = KvFeed(hashing)
        self.sequence = -1
        self.feed.add_publisher(0, engine="vllm", base_model="m", block_tokens=4, can_replay=False)

    def publish(self, *events: object) -> None:
        self.sequence += 1
        self.feed.receive(0, self.sequence, batch(*events))
        self.feed.check()

    def depth(self, hashes: list[BlockHash]) -> int:
        return self.feed.overlap(hashes, 1).device.get(0, 0)


@pytest.mark.parametrize("hashing", HASHINGS)
def test_a_salt_that_only_the_first_block_names(hashing: str) -> None:
    worker = Worker(hashing)
    worker.publish(
        stored([1], PROMPT[:4], extra_keys=[["tenant"]]),
        stored([2], PROMPT[4:8], parent=1, extra_keys=[None]),
        stored([3], PROMPT[8:], parent=2, extra_keys=[None]),
    )
    assert worker.depth(chain(hashing, salt="tenant")) == 3
    assert worker.depth(chain(hashing)) == 0


@pytest.mark.parametrize("hashing", HASHINGS)
def test_adapter_and_salt_together(hashing: str) -> None:
    worker = Worker(hashing)
    worker.publish(
        stored([1], PROMPT[:4], lora_name="a", extra_keys=[["a", "tenant"]]),
        stored([2, 3], PROMPT[4:], parent=1, lora_name="a", extra_keys=[["a"], ["a"]]),
    )
    assert worker.depth(chain(hashing, adapter="a", salt="tenant")) == 3
    assert worker.depth(chain(hashing, adapter="a")) == 0


@pytest.mark.parametrize("hashing", HASHINGS)
def test_after_a_clear_nothing_is_remembered(hashing: str) -> None:
    worker = Worker(hashing)
    worker.publish(stored([1, 2], PROMPT[:8], extra_keys=[["tenant"], None]), removed(2), cleared())
    worker.publish(stored([1, 2, 3], PROMPT))
    assert worker.depth(chain(hashing)) == 3
    assert worker.depth(chain(hashing, salt="tenant")) == 0


def test_as_many_salted_blocks_are_remembered_as_the_bound_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "SALTED_BLOCKS", 3)
    worker = Worker("dynamo")
    worker.publish(stored([1], PROMPT[:4], extra_keys=[["tenant"]]))
    worker.publish(stored([9], PROMPT[8:], extra_keys=[["other"]]))
    worker.publish(stored([2, 3], PROMPT[4:], parent=1))
    assert worker.depth(chain("dynamo", salt="tenant")) == 3


def test_salted_blocks_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows a forgotten one matches nothing; nothing is invented."""
    monkeypatch.setattr(namespaces, "SALTED_BLOCKS", 2)
    worker = Worker("dynamo")
    worker.publish(stored([1, 2], PROMPT[:8], extra_keys=[["tenant"], None]))
    worker.publish(stored([9], PROMPT[8:], extra_keys=[["other"]]))
    worker.publish(stored([8], PROMPT[:4], extra_keys=[["third"]]))
    worker.publish(stored([3], PROMPT[8:], parent=2))
    assert worker.depth(chain("dynamo", salt="tenant")) == 2
