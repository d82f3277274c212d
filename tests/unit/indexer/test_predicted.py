"""Predictions: how long they are believed, and how many of them."""

from __future__ import annotations

import pytest

from indexer import predicted
from indexer.blocks import TOKEN_BYTES, Unit, chain_block_hashes, pack_tokens
from indexer.byte_blocks import chain_byte_blocks
from indexer.predicted import PredictedIndex

ALL = (1 << 64) - 1


def chain(*token_ids: int) -> list[int]:
    return chain_block_hashes(pack_tokens(token_ids), TOKEN_BYTES, 0)


@pytest.fixture
def index() -> PredictedIndex:
    made = PredictedIndex(10.0)
    made.add_slot(0, 100)
    made.add_slot(1, 100)
    return made


def test_believed_until_its_time_is_over(index: PredictedIndex) -> None:
    index.store(0, chain(1, 2, 3), now=5.0)
    assert index.match(chain(1, 2, 3, 4), ALL, now=14.9) == {0: 3}
    assert index.match(chain(1, 2, 3), ALL, now=15.0) == {}


def test_use_renews(index: PredictedIndex) -> None:
    index.store(0, chain(1, 2, 3), now=0.0)
    index.store(0, chain(1, 2), now=6.0)
    assert index.match(chain(1, 2, 3), ALL, now=12.0) == {0: 2}, "the third block was not used again"
    index.check()


def test_zero_seconds_are_never_believed() -> None:
    index = PredictedIndex(0.0)
    index.add_slot(0, 10)
    index.store(0, chain(1), now=1.0)
    assert index.match(chain(1), ALL, now=1.0) == {}


def test_workers_have_their_own_times(index: PredictedIndex) -> None:
    index.store(0, chain(1, 2), now=0.0)
    index.store(1, chain(1), now=5.0)
    assert index.match(chain(1, 2), ALL, now=7.0) == {0: 2, 1: 1}
    assert index.match(chain(1, 2), ALL, now=12.0) == {1: 1}
    assert index.match(chain(1, 2), 0b01, now=7.0) == {0: 2}


def test_never_more_than_the_worker_has_and_the_least_recent_go_first(index: PredictedIndex) -> None:
    index.add_slot(2, 4)
    index.store(2, chain(1, 2, 3), now=0.0)
    index.store(2, chain(8, 9), now=1.0)
    assert index.num_blocks(2) == 4
    assert index.match(chain(8, 9), ALL, now=2.0) == {2: 2}
    assert index.match(chain(1, 2, 3), ALL, now=2.0) == {2: 2}, (
        "the end of a prompt goes before its beginning"
    )
    index.store(2, chain(1, 2), now=3.0)
    index.store(2, chain(5), now=4.0)
    assert index.match(chain(8, 9), ALL, now=4.0) == {2: 1}
    index.check()


def test_a_prompt_larger_than_the_worker(index: PredictedIndex) -> None:
    index.add_slot(2, 3)
    index.store(2, chain(*range(10)), now=0.0)
    assert index.match(chain(*range(10)), ALL, now=0.0) == {2: 3}
    index.check()


def test_less_capacity_evicts(index: PredictedIndex) -> None:
    index.store(0, chain(1, 2, 3), now=0.0)
    index.add_slot(0, 1)
    assert index.match(chain(1, 2, 3), ALL, now=0.0) == {0: 1}


def test_unknown_capacity_is_bounded_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicted, "PREDICTED_BLOCKS_PER_SLOT", 2)
    index = PredictedIndex(10.0)
    index.add_slot(0, None)
    index.store(0, chain(1, 2, 3), now=0.0)
    assert index.num_blocks(0) == 2


def test_expiry_gives_memory_back_in_slices(index: PredictedIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicted, "EXPIRE_BLOCKS", 3)
    index.store(0, chain(1, 2), now=0.0)
    index.store(1, chain(1, 2, 3), now=0.0)
    index.store(1, chain(7), now=5.0)
    index.expire(now=10.0)
    assert (index.num_blocks(0), index.num_blocks(1)) == (0, 3)
    assert index.match(chain(1, 2, 3), ALL, now=10.0) == {}, "due is not believed, given back or not"
    index.expire(now=10.0)
    assert index.num_blocks(1) == 1
    index.check()


def test_a_worker_that_restarted_is_forgotten(index: PredictedIndex) -> None:
    index.store(0, chain(1), now=0.0)
    index.clear(0)
    assert index.match(chain(1), ALL, now=0.0) == {}
    index.store(0, chain(2), now=0.0)
    assert index.match(chain(2), ALL, now=0.0) == {0: 1}
    index.check()


def test_a_worker_that_left_leaves_nothing(index: PredictedIndex) -> None:
    index.store(0, chain(1, 2), now=0.0)
    index.drop_slot(0)
    assert index.match(chain(1, 2), ALL, now=0.0) == {}
    index.expire(now=0.0)
    assert index.is_free(0)
    assert not index.is_free(1)
    index.check()


def test_what_was_never_computed_is_retracted_and_what_was_believed_before_stays(
    index: PredictedIndex,
) -> None:
    index.store(0, chain(1, 2), now=0.0)
    index.confirm(0, chain(1, 2))
    index.store(0, chain(1, 2, 3, 4), now=1.0)
    index.store(1, chain(1, 2, 3, 4), now=1.0)
    index.retract(0, chain(1, 2, 3, 4))
    assert index.match(chain(1, 2, 3, 4), ALL, now=1.0) == {0: 2, 1: 4}, "another worker's are untouched"
    assert index.num_blocks(0) == 2
    index.check()


def test_proof_by_any_request_is_proof(index: PredictedIndex) -> None:
    index.store(0, chain(1, 2), now=0.0)
    index.store(0, chain(1, 2, 3), now=0.0)
    index.confirm(0, chain(1, 2, 3))
    index.retract(0, chain(1, 2))
    assert index.match(chain(1, 2, 3), ALL, now=0.0) == {0: 3}


def test_proof_ends_with_the_belief(index: PredictedIndex) -> None:
    index.store(0, chain(1, 2), now=0.0)
    index.confirm(0, chain(1, 2))
    index.store(0, chain(1, 2), now=10.0)
    index.retract(0, chain(1, 2))
    assert index.match(chain(1, 2), ALL, now=10.0) == {}, "it was due when it was predicted again"


def test_what_was_evicted_meanwhile_is_not_retracted_again(index: PredictedIndex) -> None:
    index.add_slot(2, 2)
    index.store(2, chain(1, 2), now=0.0)
    index.store(2, chain(8, 9), now=0.0)
    index.retract(2, chain(1, 2))
    assert index.match(chain(8, 9), ALL, now=0.0) == {2: 2}
    index.check()


def test_byte_prompts_take_the_room_of_what_their_hashes_cover(index: PredictedIndex) -> None:
    long, other = (chain_byte_blocks(bytes([i]) * 40 * TOKEN_BYTES, TOKEN_BYTES, 0) for i in (1, 2))
    assert len(long) == 36
    index.add_slot(2, 50)
    index.store(2, long, now=0.0, unit=Unit.BYTES)
    assert index.num_blocks(2) == 40
    index.store(2, other, now=1.0, unit=Unit.BYTES)
    assert index.match(other, ALL, now=1.0) == {2: 36}
    assert index.match(long, ALL, now=1.0) == {2: 10}, "the four wide ones went first, then 22 narrow ones"
    assert index.num_blocks(2) == 50
    index.retract(2, other)
    assert index.num_blocks(2) == 10
    index.check()


def test_of_a_byte_prompt_larger_than_the_worker_whole_hashes_are_believed(index: PredictedIndex) -> None:
    index.add_slot(2, 35)
    index.store(2, chain_byte_blocks(bytes(40 * TOKEN_BYTES), TOKEN_BYTES, 0), now=0.0, unit=Unit.BYTES)
    assert index.num_blocks(2) == 34
    index.check()


def test_what_a_worker_shares_with_the_one_before_is_no_more_than_a_guess(index: PredictedIndex) -> None:
    index.store(0, chain(1, 2, 3), now=0.0)
    for held in range(6):
        index.clear(1)
        index.store(1, chain(1, 2, 3, 4, 5)[:held], now=0.0)
        expected = {0: 3, 1: held} if held else {0: 3}
        assert index.match(chain(1, 2, 3, 4, 5), ALL, now=0.0) == expected
