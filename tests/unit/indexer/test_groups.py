"""Hybrid models: a hit is as long as every group supports, by the rule of vLLM's KV-cache coordinator."""

from __future__ import annotations

from math import lcm

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer import groups
from indexer.blocks import TOKEN_BYTES, Layout, chain_block_hashes, pack_tokens, root_seed
from indexer.events import GroupKind
from indexer.feed import KvFeed
from indexer.groups import Need
from indexer.trust import TrustLevel
from tests.support.vllm_events import batch, cleared, removed, stored

PROMPT = list(range(32))
NAMES = list(range(1, 9))  # eight blocks of four
WINDOW = {"kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 8}
STATE = {"kv_cache_spec_kind": "mamba"}


def hashes() -> list[int]:
    return chain_block_hashes(pack_tokens(PROMPT), 4 * TOKEN_BYTES, root_seed("m"))


class Worker:
    """A worker whose model has several groups."""

    def __init__(self, feed: KvFeed | None = None, slot: int = 0) -> None:
        self.feed = feed or KvFeed()
        self.slot = slot
        self.sequence = -1
        self.feed.add_publisher(slot, engine="vllm", base_model="m", block_tokens=4, can_replay=False)

    def publish(self, *events: object) -> None:
        self.sequence += 1
        self.feed.receive(self.slot, self.sequence, batch(*events))
        self.feed.check()

    @property
    def depth(self) -> int:
        return self.feed.overlap(hashes(), 1 << self.slot).device.get(self.slot, 0)

    @property
    def ignored(self) -> dict[str, int]:
        return dict(self.feed.stats(self.slot).ignored)


@pytest.fixture
def worker() -> Worker:
    return Worker()


# The rule, for one group.


@pytest.mark.parametrize(
    ("kind", "held", "expected"),
    [
        (GroupKind.FULL, {0, 1, 2, 4, 5}, 3),
        (GroupKind.FULL, set(), 0),
        (GroupKind.WINDOW, {4, 5}, 6),
        (GroupKind.WINDOW, {4, 5, 7}, 6),
        (GroupKind.WINDOW, {3, 5}, 0),
        (GroupKind.WINDOW, {0, 2}, 1),
        (GroupKind.WINDOW, {0, 1, 2, 4}, 3),
        (GroupKind.WINDOW, set(range(8)), 8),
        (GroupKind.STATE, {2, 5}, 6),
        (GroupKind.STATE, set(), 0),
    ],
)
def test_what_one_group_supports(kind: GroupKind, held: set[int], expected: int) -> None:
    assert Need(kind, span=2).longest(held.__contains__, 8, 1) == expected


@pytest.mark.parametrize(
    ("kind", "held", "expected"),
    [
        (GroupKind.FULL, {1, 3, 5}, 4),
        (GroupKind.WINDOW, {1, 3, 5}, 4),
        (GroupKind.WINDOW, {1, 3, 5, 7}, 8),
        (GroupKind.STATE, {1, 5}, 0),
        (GroupKind.STATE, {3, 5}, 4),
    ],
)
def test_a_hit_ends_where_every_group_has_an_end(kind: GroupKind, held: set[int], expected: int) -> None:
    """A group whose blocks are twice as long, in a model whose longest are four times as long."""
    assert Need(kind, step=2, span=2).longest(held.__contains__, 8, 4) == expected


@given(
    st.sampled_from(GroupKind),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 2),
    st.sets(st.integers(0, 17)),
    st.integers(0, 18),
)
def test_the_longest_is_the_longest_that_suffices(
    kind: GroupKind, step: int, span: int, factor: int, held: set[int], limit: int
) -> None:
    """Against the definition, end by end."""
    alignment = lcm(step, step * factor)

    def suffices(end: int) -> bool:
        needed = range(step - 1, end, step)
        if kind is GroupKind.WINDOW:
            return set(needed[-span:]) <= held
        return set(needed[-1:]) <= held if kind is GroupKind.STATE else set(needed) <= held

    expected = max(end for end in range(0, limit + 1, alignment) if suffices(end))
    assert Need(kind, step, span).longest(held.__contains__, limit, alignment) == expected


# What events tell of them.


def test_a_window_needs_only_the_blocks_before_the_end(worker: Worker) -> None:
    worker.publish(stored(NAMES, PROMPT), stored(NAMES, PROMPT, group_idx=1, **WINDOW))
    assert worker.depth == 8
    worker.publish(*(removed(name, group_idx=1) for name in (1, 2, 3, 6)))
    assert worker.depth == 8, "7 and 8 cover the window"
    worker.publish(removed(8, group_idx=1))
    assert worker.depth == 5, "4 and 5 do"
    worker.publish(removed(5))
    assert worker.depth == 0, "of 1 to 4 only the last is held, and the window is of two"
    assert worker.ignored == {}


def test_a_window_over_the_whole_prompt(worker: Worker) -> None:
    worker.publish(stored([1], PROMPT[:4]), stored([1], PROMPT[:4], group_idx=1, **WINDOW))
    assert worker.depth == 1


def test_state_needs_its_one_block(worker: Worker) -> None:
    worker.publish(stored(NAMES, PROMPT), stored([3, 6], PROMPT, group_idx=1, **STATE))
    assert worker.depth == 6
    worker.publish(removed(6, group_idx=1))
    assert worker.depth == 3


def test_all_groups_must_agree(worker: Worker) -> None:
    worker.publish(
        stored(NAMES, PROMPT),
        stored(NAMES[:6], PROMPT[:24], group_idx=1, **WINDOW),
        stored([2, 5, 8], PROMPT, group_idx=2, **STATE),
    )
    assert worker.depth == 5
    worker.publish(removed(4, group_idx=1))
    assert worker.depth == 2


def test_a_second_group_of_full_attention(worker: Worker) -> None:
    worker.publish(stored(NAMES, PROMPT, group_idx=1), stored(NAMES[:5], PROMPT[:20], group_idx=2))
    assert worker.depth == 5
    worker.publish(removed(3, group_idx=2))
    assert worker.depth == 2


def test_another_group_may_come_first(worker: Worker) -> None:
    worker.publish(
        stored([7, 8], PROMPT, group_idx=0, **WINDOW),
        stored(NAMES[:4], PROMPT[:16], group_idx=1),
        stored(NAMES[4:], PROMPT[16:], parent=4, group_idx=1),
    )
    assert worker.depth == 8
    assert worker.feed.layout(0) == Layout(4)


def test_a_model_without_full_attention(worker: Worker) -> None:
    worker.publish(stored(NAMES, PROMPT, group_idx=0, **WINDOW))
    worker.publish(*(removed(name, group_idx=0) for name in (1, 2, 3, 8)))
    assert worker.depth == 7


def test_groups_of_other_block_sizes(worker: Worker) -> None:
    """A group's blocks of 8 tokens end where every second block of the main group does."""
    worker.publish(
        stored(NAMES, PROMPT),
        stored([2, 4, 6], PROMPT[:24], group_idx=1, block_size=8, **STATE),
    )
    assert worker.depth == 6
    worker.publish(removed(6, group_idx=1))
    assert worker.depth == 4
    assert worker.feed.trust(0).level is TrustLevel.EXACT


def test_the_end_of_a_prompt_may_be_a_shorter_block(worker: Worker) -> None:
    """Hybrid models with states store it by itself, before or after they store long ones."""
    worker.publish(
        stored([91], [1, 2], block_tokens=2),
        stored([91], [1, 2], block_tokens=2, group_idx=1, **STATE),
        stored(NAMES, PROMPT),
        stored([8], PROMPT, group_idx=1, **STATE),
        stored([92], [1, 2], block_tokens=2, parent=8),
    )
    assert worker.depth == 8
    assert worker.feed.layout(0) == Layout(4)
    assert worker.feed.trust(0).level is TrustLevel.EXACT
    assert worker.ignored == {"block_size": 1}


def test_lower_tiers_continue_what_all_groups_support(worker: Worker) -> None:
    worker.publish(
        stored(NAMES, PROMPT),
        stored(NAMES, PROMPT, group_idx=1, **WINDOW),
        stored([4, 5, 6], [], medium="CPU", block_size=0, kv_cache_spec_kind=None),
        *(removed(name) for name in (4, 5, 6, 7, 8)),
        *(removed(name, group_idx=1) for name in (5, 6, 7, 8)),
    )
    scores = worker.feed.overlap(hashes(), 1)
    assert (scores.device, scores.host) == ({0: 3}, {0: 1}), "behind 4 the window is held nowhere"
    worker.publish(stored([5, 6], [], medium="CPU", group_idx=1, block_size=0, kv_cache_spec_kind=None))
    scores = worker.feed.overlap(hashes(), 1)
    assert (scores.device, scores.host, scores.disk) == ({0: 3}, {0: 3}, {})


def test_workers_without_such_groups_stay_as_they_are() -> None:
    feed = KvFeed()
    hybrid, plain = Worker(feed, 0), Worker(feed, 1)
    for each in (hybrid, plain):
        each.publish(stored(NAMES, PROMPT))
    hybrid.publish(stored([4], PROMPT[:16], group_idx=1, **STATE))
    plain.publish(stored([8], [], medium="CPU"), removed(8))
    scores = feed.overlap(hashes(), 0b11)
    assert (scores.device, scores.host) == ({0: 4, 1: 7}, {1: 1})
    assert feed.overlap(hashes(), 0b10).device == {1: 7}


def test_groups_go_with_their_worker(worker: Worker) -> None:
    worker.publish(stored(NAMES, PROMPT), stored([4], PROMPT[:16], group_idx=1, **STATE))
    worker.publish(cleared(), stored(NAMES, PROMPT))
    assert worker.depth == 8
    worker.publish(stored([4], PROMPT[:16], group_idx=1, **STATE))
    worker.feed.remove_publisher(0)
    while not worker.feed.sweep():
        worker.feed.check()
    again = Worker(worker.feed)
    again.publish(stored(NAMES, PROMPT))
    assert again.depth == 8


def test_a_group_whose_kind_is_not_told_is_left_out(worker: Worker) -> None:
    """0.20.2 to 0.22.0: the first group seen counts."""
    untold = {"kv_cache_spec_kind": None}
    worker.publish(
        stored(NAMES, PROMPT, group_idx=1, **untold),
        stored(NAMES[:2], PROMPT[:8], group_idx=2, **untold),
        removed(3, group_idx=2),
        removed(8, group_idx=1),
    )
    assert worker.depth == 7
    assert worker.ignored == {"attention_group": 2}


def test_a_removal_chooses_no_group(worker: Worker) -> None:
    """A stream may be joined at any message, such as one of a sliding window."""
    worker.publish(removed(9, group_idx=3), stored(NAMES, PROMPT, group_idx=0))
    assert worker.depth == 8


def test_groups_are_bounded(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "GROUPS", 2)
    worker.publish(stored(NAMES, PROMPT))
    worker.publish(*(stored([8], PROMPT, group_idx=number, **STATE) for number in range(1, 5)))
    assert worker.depth == 8
    assert worker.ignored == {"attention_group": 2}


GROUP_FIELDS = {
    GroupKind.FULL: {"kv_cache_spec_kind": "full_attention"},
    GroupKind.WINDOW: {"kv_cache_spec_kind": "sliding_window"},
    GroupKind.STATE: {"kv_cache_spec_kind": "mamba"},
}
kinds = st.sampled_from(list(GROUP_FIELDS))
blocks = st.sets(st.sampled_from(NAMES))


@given(
    main=blocks,
    others=st.lists(st.tuples(kinds, st.integers(2, 20), st.sampled_from([4, 8]), blocks), max_size=3),
    main_comes=st.integers(0, 3),
)
def test_a_hit_is_the_longest_that_every_group_supports(
    main: set[int], others: list[tuple[GroupKind, int, int, set[int]]], main_comes: int
) -> None:
    """Against the definition, whatever is held and in whichever order the groups tell."""
    told: list[object] = []
    for number, (kind, window, size, names) in enumerate(others, start=1):
        ends = sorted(name for name in names if name % (size // 4) == 0)
        fields = {**GROUP_FIELDS[kind], "kv_cache_spec_sliding_window": window, "group_idx": number}
        told.append(stored(ends, [], block_size=size, **fields))
    told.insert(min(main_comes, len(told)), stored(NAMES, PROMPT))
    # The group of full attention that tells first is the main one: its names need a description.
    first_full = next((kind for kind, *_ in others if kind is GroupKind.FULL), None)
    if first_full is not None:
        told.sort(key=lambda event: not event["token_ids"])
    worker = Worker()
    worker.publish(*told)
    worker.publish(removed(*(set(NAMES) - main)))

    def supports(end: int, kind: GroupKind, window: int, size: int, names: set[int]) -> bool:
        step = size // 4
        needed = range(step, end + 1, step)
        if kind is GroupKind.WINDOW:
            needed = needed[-max(1, -(-(window - 1) // size)) :]
        return set(needed[-1:] if kind is GroupKind.STATE else needed) <= names

    alignment = lcm(*(size // 4 for _, _, size, _ in others))
    rows = [(GroupKind.FULL, 0, 4, main), *others]
    expected = max(end for end in range(0, 9, alignment) if all(supports(end, *row) for row in rows))
    assert worker.depth == expected
