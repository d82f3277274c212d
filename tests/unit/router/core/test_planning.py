"""The columns that a policy is handed, and what a choice means for the books."""

import random

import pytest

from indexer.blocks import Unit
from policies.base import BasePolicy, Needs
from policies.types import Choice, RoutingRequest
from tests.support.columns import MODEL
from tests.support.fleets import BLOCK, Engine, make_core, prompt_of, publishing, request, silent

FOUR = list(range(4 * BLOCK))


class First(BasePolicy):
    """Takes row 0; needs what the test says."""

    name = "first"

    def __init__(self, needs=Needs.OVERLAP | Needs.LOADS | Needs.DECODE_BLOCKS):
        super().__init__()
        self.needs = needs

    def choose(self, request: RoutingRequest, candidates, rng: random.Random) -> Choice:
        return Choice(0)


def first_core(workers, needs=None, **options):
    core = make_core(workers, **options)
    core.set_policy(First() if needs is None else First(needs))
    return core


def test_columns_are_in_reference_blocks_whatever_the_workers_block_size():
    core = first_core([silent("a", block_tokens=32), silent("b")])
    prompt = prompt_of([7] * 100, block_sizes=(16, 32))
    core.route(request("r1"), prompt, now=0.0)
    candidates = core.route(request("r2"), prompt, now=0.0).candidates
    assert candidates.block_tokens == 16
    assert candidates.prompt_blocks == 6.25
    # a holds three of its blocks of 32; the first request left 100 tokens to prefill there.
    assert candidates.device_overlap == [6, 0]
    assert candidates.active_prefill_blocks == [6.25, 0]
    assert candidates.potential_decode_blocks == [6, 6]
    assert candidates.num_active_requests == [1, 0]
    assert candidates.num_held_blocks == [3, 0]
    assert candidates.served_last_row == 0


@pytest.mark.parametrize(
    ("needs", "filled"),
    [
        (Needs.NOTHING, set()),
        (Needs.LOADS, {"active_prefill_blocks", "num_active_requests"}),
        (Needs.DECODE_BLOCKS, {"potential_decode_blocks"}),
        (Needs.OVERLAP, {"device_overlap", "num_held_blocks"}),
    ],
)
def test_only_the_columns_that_are_needed_are_filled(needs, filled):
    core = first_core([silent("a")])
    core.route(request("r1"), prompt_of(FOUR), now=0.0)
    core.set_policy(First(needs))
    candidates = core.route(request("r2"), prompt_of(FOUR), now=0.0).candidates
    columns = (
        "device_overlap",
        "host_overlap",
        "disk_overlap",
        "active_prefill_blocks",
        "potential_decode_blocks",
        "num_active_requests",
        "num_held_blocks",
    )
    assert {name for name in columns if getattr(candidates, name) != [0]} == filled
    assert (candidates.served_last_row is None) == (Needs.OVERLAP not in needs)


def test_without_the_need_for_overlap_the_index_is_not_asked(monkeypatch):
    core = first_core([publishing("a")], Needs.LOADS)
    monkeypatch.setattr(core.feed, "overlap", None)
    decision = core.route(request("r"), prompt_of(FOUR), now=0.0)
    assert decision.expected_cached_tokens == 0
    assert core.worker("a").active_prefill_tokens == 64


def test_booked_prefill_is_net_of_cached_tokens_the_slower_tiers_by_weight():
    core = first_core([publishing("a")])
    engine = Engine(core, "a")
    engine.store(FOUR)
    engine.offload(FOUR, 1, 2, "CPU")
    engine.offload(FOUR, 2, 4, "DISK")
    engine.remove(FOUR, 1, 4)
    decision = core.route(request("r"), prompt_of([*FOUR, 5]), now=0.0)
    assert decision.expected_cached_tokens == 64
    # 65 tokens, less 16 on the device, 0.75 * 16 in host memory, 0.25 * 32 on disk.
    assert core.worker("a").active_prefill_tokens == 65 - 16 - 12 - 8


def test_the_expectation_leaves_out_the_block_of_the_last_token():
    core = first_core([publishing("a")])
    Engine(core, "a").store(FOUR)
    assert core.preview(request("r"), prompt_of(FOUR), now=0.0).expected_cached_tokens == 48
    assert core.preview(request("r"), prompt_of([*FOUR, 1]), now=0.0).expected_cached_tokens == 64


def test_a_request_without_a_prompt_books_what_is_known_of_it():
    core = first_core([silent("a")])
    asked = RoutingRequest(id="r", model=MODEL, num_prompt_tokens=50, stream=True)
    decision = core.route(asked, None, now=0.0)
    view = core.worker("a")
    assert decision.num_prompt_tokens == view.active_prefill_tokens == 50
    assert (view.num_active_requests, view.active_decode_blocks) == (1, 0)


def test_of_a_batch_the_rest_counts_without_sharing():
    core = first_core([silent("a")])
    for request_id in ("r1", "r2"):
        batch = prompt_of(FOUR, exact=False)
        batch.num_tokens = 100
        core.route(request(request_id), batch, now=0.0)
    # Four blocks of the first prompt are shared; of 100 tokens six blocks are complete.
    assert core.worker("a").active_decode_blocks == 4 + 2 + 2


def test_without_reuse_nothing_is_shared():
    core = make_core([silent("a")], parameters={"assume_kv_reuse": False})
    for request_id in ("r1", "r2"):
        candidates = core.route(request(request_id), prompt_of(FOUR), now=0.0).candidates
    assert candidates.potential_decode_blocks == [8]
    assert core.worker("a").active_decode_blocks == 8


def test_a_space_that_was_not_hashed_counts_without_sharing_or_overlap():
    core = first_core([silent("a", block_tokens=32)])
    for request_id in ("r1", "r2"):
        candidates = core.route(request(request_id), prompt_of(FOUR), now=0.0).candidates
    assert candidates.device_overlap == [0]
    assert core.worker("a").active_decode_blocks == 4


def test_lengths_of_byte_prompts_follow_what_usage_taught():
    core = first_core([silent("a")])
    as_bytes = prompt_of(FOUR, unit=Unit.BYTES)
    core.route(request("r1"), as_bytes, now=0.0)
    core.observe_usage("r1", prompt_tokens=32, cached_tokens=None, now=0.0)
    decision = core.route(request("r2"), as_bytes, now=0.0)
    # Half as many tokens as estimated: so are the prompt, its blocks and what is cached of it.
    assert decision.num_prompt_tokens == 32
    assert decision.candidates.prompt_blocks == 2
    assert decision.candidates.device_overlap == [2]
    assert decision.candidates.potential_decode_blocks == [2]
    assert core.worker("a").active_prefill_tokens == 64 + 0
    assert core.worker("a").active_decode_blocks == 2


def test_token_prompts_teach_nothing_and_are_not_corrected():
    core = first_core([silent("a")])
    core.route(request("r1"), prompt_of(FOUR), now=0.0)
    core.observe_usage("r1", prompt_tokens=32, cached_tokens=None, now=0.0)
    assert core.preview(request("r2"), prompt_of(FOUR), now=0.0).num_prompt_tokens == 64


def test_the_ratio_of_a_model_that_nobody_serves_is_forgotten():
    core = first_core([silent("a")])
    as_bytes = prompt_of(FOUR, unit=Unit.BYTES)
    core.route(request("r1"), as_bytes, now=0.0)
    core.observe_usage("r1", prompt_tokens=32, cached_tokens=None, now=0.0)
    core.reconcile([], now=0.0)
    core.reconcile([silent("a")], now=0.0)
    assert core.preview(request("r2"), as_bytes, now=0.0).num_prompt_tokens == 64


def test_a_decision_says_what_it_was_made_from():
    core = first_core([publishing("a"), silent("b")])
    decision = core.route(request("r"), prompt_of(FOUR), now=3.0, attempt=1, exclude={"b"})
    assert (decision.request_id, decision.attempt, decision.now) == ("r", 1, 3.0)
    assert (decision.worker.id, decision.slot) == ("a", core.slot_of("a"))
    assert (decision.policy, decision.trust) == ("first", "recovering")
    assert [worker.id for worker in decision.candidates.workers] == ["a"]
    assert decision.details == {
        "unit": "tokens",
        "exact_blocks": 0,
        "booked_prefill_tokens": 64,
        "overlap_lost_tokens": 0,
    }
