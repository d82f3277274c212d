"""The columns of a decision, from bookings and overlap as they stand."""

import pytest

from indexer.blocks import HashSpace, Unit
from policies import TierWeights, make_policy
from policies.base import BasePolicy, Needs
from router.core.candidates import Demand, Inputs, build_candidates, cached_tokens, overlap_lost_tokens
from router.core.loads import ActiveSequences, Booking
from router.core.overlap import Beliefs, Overlap
from router.core.prompt import Prompt
from tests.support.columns import MODEL, REQUEST, make_candidates, make_pool, make_worker

FINE, COARSE = HashSpace(MODEL, 16), HashSpace(MODEL, 64)
WORKERS = [make_worker("fine"), make_worker("coarse", block_tokens=64)]
POOL = make_pool(zip(WORKERS, (0, 1), strict=True), block_tokens=16)
CHAINS = {FINE: [1, 2, 3, 4, 5, 6, 7, 8], COARSE: [101, 102]}


class Reader(BasePolicy):
    """Reads what the test says."""

    name = "reader"

    def __init__(self, needs):
        super().__init__()
        self.needs = needs


class Room:
    """Bookings and beliefs for the two workers."""

    def __init__(self):
        self.loads = ActiveSequences()
        self.beliefs = Beliefs(predicted_ttl=10.0, bridge_ttl=5.0)
        for slot, worker in enumerate(WORKERS):
            self.loads.add_worker(slot)
            self.beliefs.add(slot, worker)

    def book(self, request_id, slot, chain, *, prefill=0, unit=Unit.TOKENS):
        self.loads.book(
            Booking(
                request_id=request_id,
                attempt=0,
                slot=slot,
                unit=unit,
                chain=chain,
                num_unshared_blocks=0,
                prefill_tokens=prefill,
            )
        )

    def build(self, *, needs=None, prompt=None, overlap=None, ratio=1.0, served_last=None):
        policy = make_policy("kv") if needs is None else Reader(needs)
        num_tokens = round(prompt.num_tokens * ratio) if prompt else 0
        inputs = Inputs(
            request=REQUEST,
            prompt=prompt,
            policy=policy,
            pool=POOL,
            now=0.0,
            num_tokens=num_tokens,
            token_ratio=ratio,
            byte_ratio=ratio,
            demands={space: Demand.of(prompt, space, True) for space in POOL.spaces},
            overlap=overlap or Overlap(),
        )
        return build_candidates(inputs, self.loads, self.beliefs, lambda: served_last)


def prompt(num_tokens=128, unit=Unit.TOKENS):
    return Prompt(num_tokens, unit, CHAINS, exact=True)


# What a prompt asks for


def test_complete_blocks_and_the_tokens_of_the_partial_one_are_counted():
    assert Demand.of(prompt(143), FINE, True) == Demand(CHAINS[FINE], 0, 15)
    assert Demand.of(prompt(143), FINE, False) == Demand((), 8, 15)


def test_of_a_batch_the_blocks_of_the_rest_are_counted_without_hashes():
    assert Demand.of(prompt(200), FINE, True) == Demand(CHAINS[FINE], 4, 8)
    assert Demand.of(prompt(200), COARSE, True) == Demand(CHAINS[COARSE], 1, 8)


def test_without_reuse_every_block_is_new():
    assert Demand.of(prompt(), FINE, False) == Demand((), 8)


def test_a_space_without_hashes_still_has_blocks():
    assert Demand.of(prompt(), HashSpace(MODEL, 32), True) == Demand((), 4)


def test_an_estimate_below_what_was_hashed_takes_no_blocks_away():
    assert Demand.of(prompt(0), FINE, True) == Demand(CHAINS[FINE], 0)


def test_no_prompt_asks_for_nothing():
    assert Demand.of(None, FINE, True) == Demand()


# Columns


def test_every_column_is_in_reference_blocks():
    room = Room()
    room.book("r1", 0, [1, 2], prefill=24)
    room.book("r2", 1, [101], prefill=64)
    overlap = Overlap(device={0: 3, 1: 1}, host={0: 1}, disk={1: 1})
    candidates = room.build(prompt=prompt(136), overlap=overlap, served_last="coarse")
    assert candidates.block_tokens == 16
    assert candidates.prompt_blocks == 8.5
    assert candidates.device_overlap == [3, 4]
    assert candidates.host_overlap == [1, 0]
    assert candidates.disk_overlap == [0, 4]
    assert candidates.active_prefill_blocks == [1.5, 4]
    assert candidates.potential_decode_blocks == [8.5, 8.5]
    assert candidates.num_active_requests == [1, 1]
    assert candidates.served_last_row == 1


@pytest.mark.parametrize("num_tokens", [128, 135, 191, 1086])
def test_idle_workers_tie_whatever_their_block_sizes(num_tokens):
    assert Room().build(prompt=prompt(num_tokens)).potential_decode_blocks == [num_tokens / 16] * 2


def test_blocks_of_other_requests_stay_beside_the_new_prompt_s():
    room = Room()
    room.book("r1", 0, [1, 2, 33, 34])
    room.book("r2", 0, [1, 2, 33])
    # Four distinct blocks are active; the new prompt shares two of its eight.
    assert room.build(prompt=prompt()).potential_decode_blocks == [4 + 6, 2 * 4]


def test_a_hash_after_a_miss_is_not_shared():
    room = Room()
    room.book("r1", 0, [9, 2, 3])
    assert room.build(prompt=prompt()).potential_decode_blocks[0] == 3 + 8


def test_byte_prompts_are_corrected_in_every_column_but_booked_prefill():
    room = Room()
    room.book("bytes", 0, [1, 2], prefill=32, unit=Unit.BYTES)
    room.book("tokens", 0, [51, 52, 53])
    candidates = room.build(prompt=prompt(unit=Unit.BYTES), overlap=Overlap(device={0: 2, 1: 1}), ratio=0.5)
    assert candidates.prompt_blocks == 4
    assert candidates.device_overlap == [1, 2]
    # Two blocks of bytes count half, three of tokens whole, and six more of the new prompt half.
    assert candidates.potential_decode_blocks == [1 + 3 + 3, 4]
    assert candidates.active_prefill_blocks == [2, 0]


def test_blocks_of_bytes_and_of_tokens_are_never_shared():
    room = Room()
    room.book("bytes", 0, CHAINS[FINE], unit=Unit.BYTES)
    assert room.build(prompt=prompt()).potential_decode_blocks[0] == 16


def test_held_blocks_are_those_believed_of_each_worker():
    room = Room()
    room.beliefs.believe(1, prompt(), COARSE, Overlap(), now=0.0)
    assert room.build(prompt=prompt()).num_held_blocks == [0, 2 * 4]


@pytest.mark.parametrize("served_last", [None, "of another pool"])
def test_a_worker_that_is_no_candidate_wins_no_tie(served_last):
    assert Room().build(prompt=prompt(), served_last=served_last).served_last_row is None


def test_who_served_last_is_not_looked_up_for_policies_that_read_no_overlap():
    candidates = Room().build(prompt=prompt(), needs=Needs(loads=True), served_last="fine")
    assert candidates.served_last_row is None


@pytest.mark.parametrize(
    ("needs", "filled"),
    [
        (Needs(), set()),
        (Needs(loads=True), {"active_prefill_blocks", "num_active_requests"}),
        (Needs(decode_blocks=True), {"potential_decode_blocks"}),
        (Needs(overlap=True), {"device_overlap", "host_overlap", "disk_overlap", "num_held_blocks"}),
    ],
)
def test_no_more_is_computed_than_a_policy_needs(needs, filled):
    room = Room()
    for slot, space in enumerate((FINE, COARSE)):
        room.book(f"r{slot}", slot, CHAINS[space], prefill=1)
        room.beliefs.believe(slot, prompt(), space, Overlap(), now=0.0)
    tiers = Overlap(device={0: 1, 1: 1}, host={0: 1, 1: 1}, disk={0: 1, 1: 1})
    candidates = room.build(needs=needs, prompt=prompt(), overlap=tiers)
    columns = (
        "device_overlap", "host_overlap", "disk_overlap", "num_held_blocks",
        "active_prefill_blocks", "num_active_requests", "potential_decode_blocks",
    )  # fmt: skip
    assert {name for name in columns if all(getattr(candidates, name))} == filled
    assert {name for name in columns if any(getattr(candidates, name))} == filled


# What a choice gives up


@pytest.mark.parametrize(
    ("row", "lost"),
    [(0, 0), (1, 4 * 16), (2, 6 * 16)],
)
def test_overlap_lost_is_the_way_to_the_best_holder(row, lost):
    candidates = make_candidates(3, device=[6, 2, 0])
    assert overlap_lost_tokens(cached_tokens(candidates, TierWeights()), row) == lost


def test_slower_tiers_count_by_weight():
    candidates = make_candidates(3, device=[2, 0, 0], host=[0, 4, 0], disk=[0, 0, 4])
    weights = TierWeights(host=0.75, disk=0.25)
    assert [overlap_lost_tokens(cached_tokens(candidates, weights), row) for row in range(3)] == [16, 0, 32]
    nothing_saved = TierWeights(host=0.0, disk=0.0)
    assert [overlap_lost_tokens(cached_tokens(candidates, nothing_saved), row) for row in range(3)] == [
        0,
        32,
        32,
    ]


def test_nothing_is_lost_where_nobody_holds_anything():
    assert overlap_lost_tokens(cached_tokens(make_candidates(2), TierWeights()), 1) == 0
