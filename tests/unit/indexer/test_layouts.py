"""How a worker cuts its blocks, learnt from its events."""

from __future__ import annotations

import pytest

from indexer.blocks import Layout
from indexer.events import BlockStored, Tier
from indexer.layouts import LayoutWatch


def event(size: int, lookahead: int = 0, tier: Tier = Tier.DEVICE) -> BlockStored:
    return BlockStored([1], None, [0] * (size + lookahead), size, tier, lookahead_tokens=lookahead)


@pytest.fixture
def watch() -> LayoutWatch:
    return LayoutWatch(Layout(16))


def take(watch: LayoutWatch, stored: BlockStored, *, is_main: bool = True, is_hybrid: bool = False) -> bool:
    return watch.take(stored, is_main=is_main, is_hybrid=is_hybrid)


def test_the_first_event_of_the_device_says_it(watch: LayoutWatch) -> None:
    assert not take(watch, event(256, tier=Tier.DISK)), "no prompt would match"
    assert watch.known is None
    assert take(watch, event(16))
    assert watch.known == Layout(16)
    assert watch.mismatch == ""


def test_what_differs_from_the_prompts_is_taken_and_said(watch: LayoutWatch) -> None:
    assert take(watch, event(32))
    assert watch.mismatch == ("worker stores blocks of 32 tokens, prompts are cut into blocks of 16 tokens")
    watch.expect(Layout(32))
    assert watch.mismatch == ""


def test_lookahead_is_part_of_it(watch: LayoutWatch) -> None:
    assert take(watch, event(16, lookahead=1))
    assert watch.known == Layout(16, 1)
    assert watch.mismatch == (
        "worker stores blocks of 16 tokens hashed with the 1 after them, "
        "prompts are cut into blocks of 16 tokens"
    )


def test_two_cuts_on_the_device_are_too_many(watch: LayoutWatch) -> None:
    assert take(watch, event(16))
    assert not take(watch, event(32))
    assert watch.mismatch == "worker stores blocks of 16 tokens and of 32 tokens"
    watch.forget()
    assert take(watch, event(16))
    assert watch.mismatch == ""


def test_nobody_expected_anything() -> None:
    watch = LayoutWatch(None)
    assert take(watch, event(32, tier=Tier.HOST))
    assert take(watch, event(16))
    assert not take(watch, event(32, tier=Tier.HOST))
    assert (watch.known, watch.mismatch) == (Layout(16), "")


def test_the_main_group_says_it_whichever_comes_first(watch: LayoutWatch) -> None:
    assert take(watch, event(64), is_main=False, is_hybrid=True)
    assert watch.known == Layout(64)
    assert take(watch, event(16), is_hybrid=True)
    assert watch.known == Layout(16)
    assert not take(watch, event(64), is_main=False, is_hybrid=True)
    assert watch.mismatch == ""


def test_the_longest_blocks_of_a_hybrid_models_main_group_count(watch: LayoutWatch) -> None:
    assert take(watch, event(4), is_hybrid=True)
    assert take(watch, event(16), is_hybrid=True)
    assert not take(watch, event(4), is_hybrid=True)
    assert (watch.known, watch.mismatch) == (Layout(16), "")
