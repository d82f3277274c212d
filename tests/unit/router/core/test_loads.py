import pytest

from indexer.blocks import Unit
from router.core.loads import ActiveBlocks, ActiveSequences, Booking


def booking(request_id, chain=(), *, slot=0, attempt=0, prefill=0, unshared=0, unit=Unit.TOKENS):
    return Booking(
        request_id=request_id,
        attempt=attempt,
        slot=slot,
        unit=unit,
        chain=chain,
        num_unshared_blocks=unshared,
        prefill_tokens=prefill,
    )


@pytest.fixture
def loads():
    loads = ActiveSequences()
    loads.add_worker(0)
    loads.add_worker(1)
    return loads


def test_blocks_shared_by_active_requests_count_once_until_the_last_of_them_ends(loads):
    first, second = booking("a", [1, 2, 3]), booking("b", [1, 2, 9])
    loads.book(first)
    loads.book(second)
    assert loads.num_blocks(0) == 4
    loads.free(first)
    assert loads.num_blocks(0) == 3
    loads.free(second)
    assert loads.num_blocks(0) == 0
    loads.check()


def test_a_worker_without_the_prefix_would_hold_all_of_it(loads):
    loads.book(booking("a", [1, 2, 3]))
    assert loads.potential_tokens(0, Unit.TOKENS, [1, 2, 3, 4], 0, block_tokens=1) == 3 + 1
    assert loads.potential_tokens(1, Unit.TOKENS, [1, 2, 3, 4], 0, block_tokens=1) == 4


def test_blocks_without_hashes_are_never_shared(loads):
    loads.book(booking("a", unshared=3))
    loads.book(booking("b", unshared=3))
    assert loads.num_blocks(0) == 6
    assert loads.potential_tokens(0, Unit.TOKENS, (), 3, block_tokens=1) == 6 + 3


def test_byte_blocks_count_by_their_ratio_and_never_meet_token_blocks(loads):
    loads.book(booking("a", [1, 2], unit=Unit.BYTES))
    loads.book(booking("b", [1, 2, 3]))
    assert loads.num_blocks(0, byte_ratio=0.5) == 3 + 2 * 0.5
    assert loads.potential_tokens(0, Unit.BYTES, [1, 2, 3], 0, block_tokens=1, byte_ratio=0.5) == 3 + 3 * 0.5


def test_the_hashes_of_byte_blocks_count_by_what_they_cover(loads):
    chain = list(range(100, 134))
    loads.book(booking("a", chain, unit=Unit.BYTES))
    assert loads.num_blocks(0) == 32 + 2 * 2
    other = [*chain[:33], 7, 8]
    assert loads.potential_tokens(0, Unit.BYTES, other, 0, block_tokens=1) == 36 + 2 * 2
    loads.book(booking("b", other, unit=Unit.BYTES))
    loads.free(loads.get("a"))
    assert loads.num_blocks(0) == 34 + 2 * 2
    loads.check()


@pytest.mark.parametrize("slot", [0, 1])
def test_an_id_is_booked_once_on_whichever_worker(loads, slot):
    loads.book(booking("a", [1]))
    with pytest.raises(ValueError, match="a is booked already"):
        loads.book(booking("a", [1], slot=slot))
    loads.check()
    assert loads.num_blocks(0) == 1


def test_prefill_is_released_by_what_was_booked_and_once(loads):
    first = booking("a", prefill=100)
    loads.book(first)
    loads.book(booking("b", prefill=30))
    loads.release_prefill(first)
    loads.release_prefill(first)
    assert loads.prefill_tokens(0) == 30
    loads.free(first)
    assert loads.prefill_tokens(0) == 30


def test_an_attempt_is_found_only_under_its_own_number(loads):
    loads.book(booking("a", attempt=1))
    assert loads.get("a").attempt == 1
    assert loads.get("a", attempt=1) is loads.get("a")
    assert loads.get("a", attempt=0) is None
    assert loads.get("b") is None


def test_a_worker_that_leaves_takes_its_bookings_and_returns_empty(loads):
    kept = booking("b", [1], slot=1)
    loads.book(booking("a", [1, 2], prefill=9))
    loads.book(kept)
    assert [each.request_id for each in loads.remove_worker(0)] == ["a"]
    loads.add_worker(0)
    assert (loads.num_blocks(0), loads.prefill_tokens(0), loads.num_requests(0)) == (0, 0, 0)
    assert loads.get("a") is None
    assert loads.is_active(kept)
    loads.check()


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8])
def test_bisection_finds_the_shared_length_at_every_depth(length):
    chain = list(range(100, 100 + length))
    for held in range(length + 1):
        blocks = ActiveBlocks()
        blocks.add(chain[:held], 0)
        assert blocks.shared_depth(chain) == held


def test_an_empty_prompt_shares_nothing():
    blocks = ActiveBlocks()
    blocks.add([1], 0)
    assert blocks.shared_depth([]) == 0
