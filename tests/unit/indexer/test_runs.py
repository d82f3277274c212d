from __future__ import annotations

import random

import pytest

from indexer.runs import Runs, Tally


class Held(set):
    """The blocks that a key map would hold, with runs over them."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.runs = Runs(self.__contains__, self.tally)

    def store(self, parent: int | None, *keys: int) -> None:
        self.update(keys)
        self.runs.add(parent, keys)

    def evict(self, key: int) -> None:
        self.remove(key)
        self.runs.discard(key)

    def drop_oldest(self, max_blocks: int = 100) -> list[int]:
        """In the order in which they were dropped."""
        dropped: list[int] = []

        def drop(key: int) -> None:
            self.remove(key)
            dropped.append(key)

        assert self.runs.drop_oldest(max_blocks, drop) == len(dropped)
        return dropped


@pytest.fixture
def held() -> Held:
    return Held()


def test_a_run_goes_from_its_end(held: Held) -> None:
    held.store(None, 1, 2, 3)
    assert held.drop_oldest() == [3, 2, 1]
    assert held.drop_oldest() == []
    assert held.tally.num_runs == 0


def test_what_comes_next_extends_a_run(held: Held) -> None:
    held.store(None, 1, 2)
    held.store(2, 3)
    assert len(held.runs) == 1
    held.runs.check()


def test_what_others_go_on_from_is_kept(held: Held) -> None:
    held.store(None, 1, 2, 3, 4)
    held.store(2, 20, 21)
    held.store(1, 10)
    dropped = [key for _ in range(9) for key in held.drop_oldest()]
    assert not held
    assert sorted(dropped) == [1, 2, 3, 4, 10, 20, 21]
    for earlier, later in ((4, 3), (3, 2), (21, 20), (20, 2), (10, 1), (2, 1)):
        assert dropped.index(earlier) < dropped.index(later)


def test_the_run_that_was_not_extended_for_longest_goes_first(held: Held) -> None:
    held.store(None, 1)  # all in one shard
    held.store(None, 2)
    held.store(1, 3)
    assert held.drop_oldest() == [2]


def test_removals_by_the_engine_shorten_runs(held: Held) -> None:
    held.store(None, 1, 2, 3, 4)
    held.evict(2)
    held.evict(4)
    held.evict(3)  # and with it the gap that 2 left
    held.runs.check()
    held.evict(1)
    assert held.tally.num_runs == len(held.runs) == 0


def test_a_block_that_came_back_is_listed_twice_and_dropped_once(held: Held) -> None:
    held.store(None, 1, 2, 3)
    held.evict(2)
    held.store(1, 2)
    held.evict(3)
    held.runs.check()
    assert sorted(key for _ in range(3) for key in held.drop_oldest()) == [1, 2]


def test_a_long_run_goes_in_pieces(held: Held) -> None:
    held.store(None, *range(1_000))
    assert held.drop_oldest(3) == [999, 998, 997]
    assert held.drop_oldest(2) == [996, 995], "it goes on where it stopped"
    held.store(994, 5_000)
    assert held.drop_oldest(2) == [5_000, 994]
    held.runs.check()
    held.runs.check()


def test_forgetting_leaves_the_count_to_whoever_gives_the_memory_back(held: Held) -> None:
    held.store(None, 1, 2)
    held.store(1, 3)
    garbage = held.runs.clear()
    assert len(held.runs) == 0
    assert sum(len(runs) for runs, _ in garbage) == held.tally.num_runs == 2


@pytest.mark.parametrize("seed", range(5))
def test_nothing_that_is_kept_loses_its_beginning(seed: int) -> None:
    """A tree that grows at random and is given up bit by bit."""
    rng, held, parents = random.Random(seed), Held(), {}
    for key in range(0, 4_000, 4):
        parent = rng.choice([None, *held]) if rng.random() < 0.9 else None
        held.store(parent, key, key + 1)
        parents |= {key: parent, key + 1: key}
        if rng.random() < 0.3:
            held.drop_oldest()
        assert all(parents[each] is None or parents[each] in held for each in held)
    held.runs.check()
