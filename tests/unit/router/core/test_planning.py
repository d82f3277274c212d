"""The columns that a policy is handed, and what a choice means for the books."""

import random
from collections import Counter

import pytest

from indexer.blocks import HashSpace, Unit
from indexer.events import AllBlocksCleared
from loadgen.wire import Layout, encode_batch
from policies.base import BasePolicy, Needs, TierWeights
from policies.types import Choice, RoutingRequest
from router.core.loads import ActiveSequences
from router.core.outcome import Outcome
from router.core.overlap import Beliefs
from router.core.planning import Planner
from router.core.prompt import Prompt
from router.core.timekeeper import Timekeeper
from router.core.usage import NOTHING_EXPECTED, TokenRatio
from router.core.workers import WorkerTable
from router.errors import NoWorkers
from tests.support.columns import MODEL
from tests.support.fleets import BLOCK, Engine, make_core, prompt_of, publishing, request, silent

FOUR = list(range(4 * BLOCK))
ALL_COLUMNS = Needs(overlap=True, loads=True, decode_blocks=True)


class First(BasePolicy):
    """Takes row 0; needs what the test says."""

    name = "first"

    def __init__(self, needs=ALL_COLUMNS):
        super().__init__()
        self.needs = needs

    def choose(self, request: RoutingRequest, candidates, rng: random.Random) -> Choice:
        return Choice(0)


def first_core(workers, needs=ALL_COLUMNS, **options):
    core = make_core(workers, **options)
    core.set_policy(First(needs))
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
    assert candidates.potential_decode_blocks == [6.5, 6.25]
    assert candidates.num_active_requests == [1, 0]
    assert candidates.num_held_blocks == [6, 0]
    assert candidates.served_last_row == 0


@pytest.mark.parametrize(
    ("needs", "filled"),
    [
        (Needs(), set()),
        (Needs(loads=True), {"active_prefill_blocks", "num_active_requests"}),
        (Needs(decode_blocks=True), {"potential_decode_blocks"}),
        (Needs(overlap=True), {"device_overlap", "num_held_blocks"}),
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
    assert {name for name in columns if any(getattr(candidates, name))} == filled
    assert (candidates.served_last_row is None) == (not needs.overlap)


def test_without_the_need_for_overlap_the_index_is_not_asked(monkeypatch):
    core = first_core([publishing("a")], Needs(loads=True))
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
    assert candidates.device_overlap == (0,)
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
    as_bytes = prompt_of(FOUR, unit=Unit.BYTES)
    core.route(request("r2"), as_bytes, now=0.0)
    assert core.decision("r2").num_prompt_tokens == 64
    core.observe_usage("r2", prompt_tokens=32, cached_tokens=None, now=0.0)
    assert core.preview(request("r3"), as_bytes, now=0.0).num_prompt_tokens == 32
    assert core.preview(request("r3"), prompt_of(FOUR), now=0.0).num_prompt_tokens == 64


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
        "trust_reason": "no contact with the event socket yet",
    }


# The planner by itself


class Room:
    """A planner, and what it reads."""

    def __init__(self, *workers, tier_weights=TierWeights()):  # noqa: B008 - a constant
        self.beliefs = Beliefs(predicted_ttl=100.0, bridge_ttl=5.0)
        self.loads = ActiveSequences()
        self.timekeeper = Timekeeper(self.loads)
        self.workers = WorkerTable(self.beliefs.is_free)
        for entry in self.workers.reconcile(workers)[2]:
            self.beliefs.add(entry.slot, entry.worker)
            self.loads.add_worker(entry.slot)
            self.timekeeper.add_worker(entry.slot, entry.worker)
        self.planner = Planner(self.workers, self.loads, self.beliefs, self.timekeeper)
        self.policy = First()
        self.policy.tier_weights = tier_weights

    def plan(self, prompt, request_id="r", exclude=(), **options):
        return self.planner.plan(
            request(request_id),
            prompt,
            pool=self.workers.pool(MODEL, exclude),
            policy=self.policy,
            rng=random.Random(0),
            now=0.0,
            **options,
        )

    def believe(self, worker_id, prompt):
        entry = self.workers.get(worker_id)
        self.beliefs.believe(entry.slot, prompt, entry.space, self.overlap_of(prompt), now=0.0)

    def overlap_of(self, prompt):
        return self.beliefs.match(prompt, self.workers.pool(MODEL), now=0.0)


@pytest.mark.parametrize(
    ("num_tokens", "held", "expected"),
    [
        (64, 0, 0),
        (64, 2, 32),
        (64, 4, 48),  # cached whole: the last token is computed, with its block
        (65, 4, 64),
        (79, 4, 64),
        (1, 0, 0),
    ],
)
def test_expected_cached_tokens_are_those_the_engine_will_report(num_tokens, held, expected):
    room = Room(silent("a"))
    room.believe("a", prompt_of(FOUR[: held * BLOCK]))
    plan = room.plan(prompt_of(range(num_tokens)))
    assert plan.decision.expected_cached_tokens == plan.expectation.cached_tokens == expected


@pytest.mark.parametrize(
    ("num_tokens", "held", "uncached"), [(64, 0, 64), (70, 2, 38), (64, 4, 0), (70, 4, 6)]
)
def test_what_must_be_computed_is_all_but_the_cached_blocks(num_tokens, held, uncached):
    room = Room(silent("a"))
    room.believe("a", prompt_of(FOUR[: held * BLOCK]))
    plan = room.plan(prompt_of(range(num_tokens)))
    assert plan.prefill_tokens == plan.decision.details["booked_prefill_tokens"] == uncached


def test_an_estimate_below_what_is_cached_leaves_nothing_to_compute():
    room = Room(silent("a"))
    room.believe("a", prompt_of(FOUR))
    too_short = prompt_of(FOUR)
    too_short.num_tokens = 50
    assert room.plan(too_short).prefill_tokens == 0


def test_the_expectation_remembers_the_losses_told_of_so_far():
    room = Room(publishing("a"))
    cleared = encode_batch([AllBlocksCleared()], timestamp=0.0, dp_rank=0, layout=Layout.MAPS)
    room.beliefs.feed.receive(0, 0, cleared)
    assert room.plan(prompt_of(FOUR)).expectation.num_losses == 1


@pytest.mark.parametrize(
    ("weights", "uncached"),
    [
        (TierWeights(0.75, 0.25), 65 - 16 - 12 - 8),
        (TierWeights(1.0, 1.0), 1),
        (TierWeights(0.0, 0.0), 49),
    ],
)
def test_what_slower_tiers_hold_saves_prefill_by_their_weights_alone(weights, uncached):
    core = make_core([publishing("a")])
    engine = Engine(core, "a")
    engine.store(FOUR)
    engine.offload(FOUR, 1, 2, "CPU")
    engine.offload(FOUR, 2, 4, "DISK")
    engine.remove(FOUR, 1, 4)
    policy = First()
    policy.tier_weights = weights
    core.set_policy(policy)
    decision = core.preview(request("r"), prompt_of([*FOUR, 5]), now=0.0)
    assert decision.details["booked_prefill_tokens"] == uncached
    assert decision.expected_cached_tokens == 64, "whatever the tier, the engine reports it as cached"


def test_every_worker_is_planned_for_in_its_own_blocks():
    prompt = prompt_of(range(100), block_sizes=(16, 64))
    for first, second in ("ab", "ba"):
        sizes = {"a": 16, "b": 64}
        room = Room(*(silent(name, block_tokens=sizes[name]) for name in (first, second)))
        room.believe(first, prompt)
        plan = room.plan(prompt)
        held = 96 if first == "a" else 64
        assert plan.decision.candidates.block_tokens == 16
        assert plan.decision.candidates.device_overlap == [held / 16, 0]
        assert plan.decision.expected_cached_tokens == held
        assert plan.prefill_tokens == 100 - held
        assert plan.booking(queued=0).chain == prompt.chains[plan.entry.space]


def test_a_booking_says_what_the_worker_has_to_do():
    room = Room(silent("a"))
    room.believe("a", prompt_of(FOUR[:32]))
    prompt = prompt_of(range(70))
    booking = room.plan(prompt, attempt=2).booking(queued=100)
    assert (booking.request_id, booking.attempt, booking.slot, booking.is_streamed) == ("r", 2, 0, True)
    assert (booking.prefill_tokens, booking.queued_prefill_tokens) == (38, 138)
    assert (len(booking.chain), booking.num_unshared_blocks) == (4, 0)
    assert booking.expectation.chain == booking.chain


def test_planning_changes_nothing():
    room = Room(silent("a"), silent("b"))
    plans = [room.plan(prompt_of(FOUR)).decision for _ in range(2)]
    assert plans[0] == plans[1]
    assert len(room.loads) == 0
    assert [room.beliefs.num_predicted_blocks(slot) for slot in range(2)] == [0, 0]


def test_tried_workers_are_no_candidates_and_without_any_it_says_why():
    room = Room(silent("a"), silent("b"))
    assert room.plan(None, exclude={"a"}).decision.worker.id == "b"
    with pytest.raises(NoWorkers, match="of 2, 0 draining, 0 asleep, 2 tried already"):
        room.plan(None, exclude={"a", "b"})


def test_without_a_prompt_nothing_is_expected():
    plan = Room(silent("a")).plan(None)
    assert plan.expectation == NOTHING_EXPECTED
    assert plan.decision.details["unit"] == "tokens"


@pytest.mark.parametrize(
    ("exact", "unit", "needs", "is_exact"),
    [
        (True, Unit.TOKENS, Needs(overlap=True), True),
        (False, Unit.TOKENS, Needs(overlap=True), False),
        (True, Unit.BYTES, Needs(overlap=True), False),
        (True, Unit.TOKENS, Needs(loads=True), False),
    ],
)
def test_only_an_exact_prompt_that_was_looked_up_is_compared(exact, unit, needs, is_exact):
    room = Room(silent("a"))
    room.policy.needs = needs
    prompt = prompt_of(FOUR, unit=unit)
    prompt.exact = exact
    assert room.plan(prompt).expectation.is_exact is is_exact


def test_the_expectation_remembers_what_events_alone_had_promised():
    core = make_core([publishing("a")])
    engine = Engine(core, "a")
    engine.store(FOUR[:32])
    core.route(request("r1"), prompt_of(FOUR), now=0.0)
    decision = core.preview(request("r2"), prompt_of([*FOUR, 1]), now=0.0)
    assert decision.expected_cached_tokens == 64, "the bridge is expected to hold"
    assert decision.details["exact_blocks"] == 2


def test_a_choice_that_leaves_the_best_holder_says_what_it_gave_up():
    room = Room(silent("a"), silent("b", block_tokens=32))
    prompt = prompt_of(range(100), block_sizes=(16, 32))
    room.believe("a", prompt_of(FOUR[:32]))
    room.believe("b", prompt)
    lost = room.plan(prompt).decision.details["overlap_lost_tokens"]
    assert lost == 96 - 32
    room.policy.needs = Needs(loads=True)
    assert room.plan(prompt).decision.details["overlap_lost_tokens"] == 0, "it was not looked up"


def test_who_served_the_prefix_last_is_found_in_whichever_block_size():
    room = Room(silent("a"), silent("b", block_tokens=64))
    prompt = prompt_of(range(70), block_sizes=(16, 64))
    room.planner.served_last.note(prompt.chains[HashSpace(MODEL, 64)], "b")
    assert room.plan(prompt).decision.candidates.served_last_row == 1


# Lengths of byte prompts


def learnt(room, estimated, real, base_model=MODEL):
    """The ratio of the model after one more byte prompt of that length."""
    booking = room.plan(Prompt(estimated, Unit.BYTES, {}, exact=False)).booking(queued=0)
    room.planner.observe_prompt_tokens(base_model, booking, real)
    return room.planner.token_ratio(base_model)


def test_the_ratio_is_learnt_from_the_uncorrected_estimate():
    room = Room(silent("a"))
    assert room.planner.token_ratio(MODEL) == 1.0
    assert learnt(room, 100, 50) == 0.5
    # The next prompt is planned with half its length; the lesson is about the length before that.
    assert learnt(room, 100, 50) == pytest.approx(0.5)
    assert room.plan(Prompt(100, Unit.BYTES, {}, exact=False)).decision.num_prompt_tokens == 50


def test_long_prompts_teach_more_than_short_ones():
    room = Room(silent("a"))
    learnt(room, 1000, 2000)
    reference = TokenRatio()
    reference.observe(2000, 1000)
    reference.observe(5, 10)
    assert learnt(room, 10, 5) == reference.value > 1.9


@pytest.mark.parametrize("real", [None, 0])
def test_no_count_teaches_nothing(real):
    assert learnt(Room(silent("a")), 100, real) == 1.0


def test_base_models_have_ratios_of_their_own():
    room = Room(silent("a"))
    learnt(room, 100, 50)
    assert room.planner.token_ratio("other") == 1.0
    assert learnt(room, 100, 200, "other") == 2.0
    room.planner.keep_ratios_of({"other"})
    assert room.planner.token_ratio(MODEL) == 1.0
    assert room.planner.token_ratio("other") == 2.0


def test_cached_tokens_of_a_byte_prompt_are_corrected_too():
    room = Room(silent("a"))
    learnt(room, 100, 50)
    as_bytes = prompt_of(FOUR, unit=Unit.BYTES)
    room.believe("a", as_bytes)
    longer = prompt_of([*FOUR, *FOUR], unit=Unit.BYTES)
    plan = room.plan(longer)
    assert plan.decision.num_prompt_tokens == 64
    assert plan.decision.expected_cached_tokens == 32
    assert plan.prefill_tokens == 32


def test_fresh_prompts_go_to_idle_workers_of_all_block_sizes():
    """Neither an unfilled last block nor fewer, larger blocks make a worker look emptier than it is."""
    core = make_core([silent("fine"), silent("coarse", block_tokens=64)])
    chosen = Counter()
    for number in range(40):
        tokens = list(range(number * 10_000, number * 10_000 + 1_086))
        decision = core.route(request(f"r{number}"), prompt_of(tokens, block_sizes=(16, 64)), now=0.0)
        core.finish(f"r{number}", Outcome.DONE, now=0.0)
        chosen[decision.worker.id] += 1
    assert min(chosen["fine"], chosen["coarse"]) >= 15
