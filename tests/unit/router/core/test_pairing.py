"""Requests that two workers share: who is chosen, what is booked, and every way out."""

import pytest

from policies import make_policy
from policies.types import Role, Transfer
from router.core.disagg import DisaggRules, Mode, Reason
from router.core.health import HealthSign
from router.core.outcome import Outcome
from router.core.pool_policies import PolicyPool
from router.errors import NoWorkers
from tests.support.fleets import BLOCK, Engine, make_core, prompt_of, publishing, request, silent

NIXL = Transfer(protocol="nixl")
SGLANG = Transfer(protocol="sglang", port=8998)
LONG = list(range(3_000))


def prefiller(name, transfer=NIXL, **fields):
    return silent(name, role=Role.PREFILL, transfer=transfer, **fields)


def decoder(name, transfer=NIXL, **fields):
    return silent(name, role=Role.DECODE, transfer=transfer, **fields)


def sglang_decoder(name):
    return decoder(name, SGLANG, prefills_alone=False)


def core_of(*workers, **options):
    options.setdefault("disagg", DisaggRules())
    return make_core(workers, **options)


def route(core, tokens=LONG, request_id="r", *, now=0.0, stream=True, stays_whole="", **options):
    asked = request(request_id, stream=stream)
    asked.stays_whole = stays_whole
    return core.route(asked, prompt_of(tokens), now=now, **options)


def load(core, worker_id):
    view = core.worker(worker_id)
    return view.num_active_requests, view.active_prefill_tokens, view.active_decode_blocks


IDLE = (0, 0, 0)


def test_a_long_prompt_is_booked_on_both_workers_and_its_prefill_on_one():
    core = core_of(prefiller("p"), decoder("d"))
    decision = route(core)
    assert (decision.worker.id, decision.prefill.worker.id) == ("d", "p")
    assert decision.verdict.is_remote
    assert decision.verdict.reason == Reason.LONG_PROMPT
    num_blocks = 3_000 // BLOCK
    assert load(core, "p") == (1, 3_000, num_blocks)
    assert load(core, "d") == (1, 0, num_blocks)
    core.prefill_answered("r", now=1.0)
    assert load(core, "p") == IDLE
    assert load(core, "d") == (1, 0, num_blocks)
    core.first_token("r", now=1.1)
    core.finish("r", Outcome.DONE, now=2.0)
    assert load(core, "d") == IDLE
    core.check()


def test_what_the_decode_worker_holds_makes_the_next_turn_local():
    core = core_of(prefiller("p"), decoder("d"))
    route(core)
    core.prefill_answered("r", now=1.0)
    core.first_token("r", now=1.1)
    core.finish("r", Outcome.DONE, now=2.0)
    decision = route(core, [*LONG, *range(500)], "next", now=3.0)
    assert decision.prefill is None
    assert decision.verdict.reason == Reason.WELL_CACHED
    assert decision.verdict.effective_tokens == 3_500 - 3_000 // BLOCK * BLOCK
    assert load(core, "d")[1] == decision.verdict.effective_tokens
    assert load(core, "p") == IDLE


@pytest.mark.parametrize(
    ("held", "effective", "is_remote"), [(8_192, 2_047, False), (8_192, 2_048, True), (8_192, 2_049, True)]
)
def test_the_absolute_threshold_with_events_of_the_decode_worker(held, effective, is_remote):
    core = core_of(prefiller("p"), publishing("d", role=Role.DECODE, transfer=NIXL))
    tokens = list(range(held + effective))
    Engine(core, "d").store(tokens[:held])
    decision = route(core, tokens)
    assert decision.verdict.effective_tokens == effective
    assert (decision.prefill is not None) is is_remote


@pytest.mark.parametrize(
    ("num_tokens", "is_remote"),
    [(1_039, False), (1_040, True), (1_041, True)],
)
def test_the_ratio_with_events_of_the_decode_worker(num_tokens, is_remote):
    """312 of 1,040 tokens are exactly 0.3, and whole blocks where those have 8 tokens."""
    core = core_of(
        prefiller("p", block_tokens=8), publishing("d", role=Role.DECODE, transfer=NIXL, block_tokens=8)
    )
    tokens = list(range(num_tokens))
    Engine(core, "d", 8).store(tokens[:312])
    decision = core.route(request("r"), prompt_of(tokens, block_sizes=(8,)), now=0.0)
    assert decision.verdict.effective_tokens == num_tokens - 312
    assert (decision.prefill is not None) is is_remote


def test_always_and_never():
    for mode, is_remote in ((Mode.ALWAYS, True), (Mode.NEVER, False)):
        core = core_of(prefiller("p"), decoder("d"), disagg=DisaggRules(mode=mode))
        assert (route(core, LONG[:20]).prefill is not None) is is_remote
        assert (route(core, LONG, "long").prefill is not None) is is_remote


def test_a_preview_shows_both_legs_and_leaves_no_trace():
    core = core_of(prefiller("p"), decoder("d"))
    decision = core.preview(request("r"), prompt_of(LONG), now=0.0)
    assert decision.prefill.worker.id == "p"
    assert load(core, "p") == load(core, "d") == IDLE
    assert core.decisions() == []


def test_prefill_workers_answer_nothing():
    core = core_of(prefiller("p"), decoder("d"), silent("w"))
    for i in range(20):
        assert route(core, [i] * 40, f"r{i}").worker.id in ("d", "w")
    lonely = core_of(prefiller("p"))
    with pytest.raises(NoWorkers, match="prefill workers only"):
        route(lonely)
    assert not lonely.can_serve()


def test_a_whole_worker_of_a_mixed_fleet_does_all_of_its_requests():
    core = core_of(prefiller("p"), decoder("d"), silent("w"))
    core.set_draining("d", True, now=0.0)
    decision = route(core)
    assert decision.worker.id == "w"
    assert decision.verdict is None
    assert load(core, "w")[1] == 3_000


@pytest.mark.parametrize("without", ["nobody", "another protocol", "draining", "suspect", "asleep", "tried"])
def test_without_a_prefill_worker_the_decode_worker_computes_the_prompt(without):
    prefill = prefiller("p", SGLANG if without == "another protocol" else NIXL)
    core = core_of(*([] if without == "nobody" else [prefill]), decoder("d"))
    if without == "draining":
        core.set_draining("p", True, now=0.0)
    if without == "asleep":
        core.set_asleep("p", True, now=0.0)
    if without == "suspect":
        core.observe_health("p", HealthSign.PROBE_FAILED, now=0.0)
    decision = route(core, exclude={"p"} if without == "tried" else ())
    assert decision.prefill is None
    assert decision.verdict.reason == Reason.NO_PREFILL_WORKER
    assert load(core, "d")[1] == 3_000
    assert core.can_serve()


def test_a_pool_that_comes_back_is_used_again():
    core = core_of(prefiller("p"), decoder("d"))
    core.observe_health("p", HealthSign.CONNECT_FAILED, now=0.0)
    assert route(core, request_id="r1").prefill is None
    core.observe_health("p", HealthSign.PROBE_OK, now=1.0)
    assert route(core, [5, *LONG], "r2", now=1.0).prefill is not None
    core.reconcile([decoder("d")], now=2.0)
    assert route(core, [6, *LONG], "r3", now=2.0).prefill is None
    core.reconcile([decoder("d"), prefiller("p2")], now=3.0)
    assert route(core, [7, *LONG], "r4", now=3.0).prefill.worker.id == "p2"


def test_what_stays_whole_is_not_handed_over():
    core = core_of(prefiller("p"), decoder("d"))
    decision = route(core, stays_whole="several prompts in one request")
    assert decision.prefill is None
    assert decision.verdict.reason == Reason.STAYS_WHOLE


def test_a_decode_worker_that_is_chosen_anew_gets_no_hand_over():
    core = core_of(prefiller("p"), decoder("d"), decoder("e"))
    first = route(core)
    core.finish("r", Outcome.WORKER_FAILED, now=1.0)
    again = route(core, exclude={first.worker.id}, attempt=1, now=1.0)
    assert again.prefill is None
    assert again.verdict.reason == Reason.RETRIED


# Decode servers that compute no prompts


def test_a_decode_server_without_whole_workers_always_receives():
    core = core_of(prefiller("p", SGLANG), sglang_decoder("d"), disagg=DisaggRules(mode=Mode.NEVER))
    decision = route(core, LONG[:20])
    assert decision.prefill.worker.id == "p"
    assert decision.verdict.reason == Reason.CANNOT_PREFILL
    core.finish("r", Outcome.WORKER_FAILED, now=1.0)
    assert route(core, LONG[:20], attempt=1, now=1.0).prefill is not None


def test_local_prefill_of_a_decode_server_is_a_whole_worker():
    core = core_of(
        prefiller("p", SGLANG), sglang_decoder("d"), silent("w"), disagg=DisaggRules(mode=Mode.NEVER)
    )
    for i in range(10):
        decision = route(core, [i] * 40, f"r{i}")
        assert decision.worker.id == "w"
    assert load(core, "d") == IDLE


def test_a_decode_server_without_prefill_workers_serves_nothing():
    core = core_of(sglang_decoder("d"))
    assert not core.can_serve()
    with pytest.raises(NoWorkers):
        route(core)
    core.reconcile([sglang_decoder("d"), prefiller("p", SGLANG)], now=0.0)
    assert core.can_serve()
    with pytest.raises(NoWorkers, match="compute no prompts"):
        route(core, stays_whole="log probabilities of the prompt")


# Failures


def test_a_failed_prefill_goes_to_another_worker_and_then_home():
    core = core_of(prefiller("p"), prefiller("q"), decoder("d"))
    first = route(core).prefill.worker.id
    second = core.prefill_failed("r", Outcome.WORKER_FAILED, now=1.0, exclude={first})
    assert {first, second.worker.id} == {"p", "q"}
    assert load(core, first) == IDLE
    assert load(core, second.worker.id)[1] == 3_000
    assert core.decision("r").prefill is second
    assert core.prefill_failed("r", Outcome.WORKER_FAILED, now=2.0, exclude={"p", "q"}) is None
    assert load(core, "p") == load(core, "q") == IDLE
    assert load(core, "d") == (1, 3_000, 3_000 // BLOCK)
    decision = core.decision("r")
    assert (decision.prefill, decision.verdict.reason) == (None, Reason.PREFILL_FAILED)
    assert not decision.verdict.is_remote
    core.check()
    core.first_token("r", now=3.0)
    assert load(core, "d")[1] == 0


@pytest.mark.parametrize("stream", [True, False])
def test_a_prompt_that_comes_home_is_released_like_any_other(stream):
    core = core_of(prefiller("p"), decoder("d"))
    route(core, stream=stream)
    core.prefill_failed("r", Outcome.TIMED_OUT, now=1.0, exclude={"p"})
    if stream:
        core.first_token("r", now=2.0)
    else:
        core.expire(now=1_000.0)
    assert load(core, "d")[1] == 0


def test_fallback_can_be_forbidden():
    core = core_of(prefiller("p"), decoder("d"), disagg=DisaggRules(fallback=False))
    route(core)
    with pytest.raises(NoWorkers, match="--disagg-fallback is off"):
        core.prefill_failed("r", Outcome.WORKER_FAILED, now=1.0, exclude={"p"})
    core.finish("r", Outcome.WORKER_FAILED, now=1.0)
    assert load(core, "p") == load(core, "d") == IDLE
    core.observe_health("p", HealthSign.PROBE_FAILED, now=1.0)
    assert not core.can_serve()
    with pytest.raises(NoWorkers, match="--disagg-fallback is off"):
        route(core, request_id="s")


def test_a_decode_server_cannot_take_the_prompt_back():
    core = core_of(prefiller("p", SGLANG), sglang_decoder("d"))
    route(core)
    with pytest.raises(NoWorkers, match="computes no prompts"):
        core.prefill_failed("r", Outcome.WORKER_FAILED, now=1.0, exclude={"p"})
    core.finish("r", Outcome.WORKER_FAILED, now=1.0)
    assert load(core, "p") == load(core, "d") == IDLE


@pytest.mark.parametrize("outcome", Outcome)
def test_any_end_frees_both_legs_once(outcome):
    core = core_of(prefiller("p"), decoder("d"))
    route(core)
    for _ in range(2):
        core.finish("r", outcome, now=1.0)
        assert load(core, "p") == load(core, "d") == IDLE
    core.prefill_answered("r", now=2.0)
    assert core.prefill_failed("r", Outcome.WORKER_FAILED, now=2.0, exclude=()) is None
    core.check()


def test_a_failed_leg_leaves_no_belief_on_its_worker():
    core = core_of(prefiller("p"), decoder("d"))
    route(core)
    core.prefill_failed("r", Outcome.WORKER_FAILED, now=1.0, exclude={"p"})
    assert core.worker("p").num_predicted_blocks == 0


def test_either_worker_may_leave_in_the_middle():
    for left in ("p", "d"):
        core = core_of(prefiller("p"), decoder("d"))
        route(core)
        stays = decoder("d") if left == "p" else prefiller("p")
        core.reconcile([stays], now=1.0)
        core.prefill_answered("r", now=2.0)
        core.first_token("r", now=2.0)
        core.finish("r", Outcome.DONE, now=3.0)
        assert load(core, stays.id) == IDLE
        core.check()


def test_a_request_whose_decode_worker_left_has_no_other_prefill_worker():
    core = core_of(prefiller("p"), prefiller("q"), decoder("d"))
    tried = route(core).prefill.worker.id
    core.reconcile([prefiller("p"), prefiller("q")], now=1.0)
    assert core.prefill_failed("r", Outcome.WORKER_FAILED, now=1.0, exclude={tried}) is None
    assert load(core, "p") == load(core, "q") == IDLE


# What is learnt


def test_the_prefill_legs_usage_is_compared_and_the_decode_legs_is_not():
    core = core_of(prefiller("p"), decoder("d"))
    route(core, LONG, "r1")
    cached = core.prefill_answered("r1", now=1.0, prompt_tokens=3_000, cached_tokens=0)
    assert (cached.expected, cached.reported) == (0, 0)
    core.first_token("r1", now=1.1)
    assert core.observe_usage("r1", prompt_tokens=3_000, cached_tokens=2_992, now=2.0) is None
    core.finish("r1", Outcome.DONE, now=2.0)


def test_legs_at_once_are_computed_with_the_first_token():
    core = core_of(prefiller("p", SGLANG), sglang_decoder("d"))
    route(core)
    core.first_token("r", now=1.0)
    assert load(core, "p") == IDLE
    assert load(core, "d") == (1, 0, 3_000 // BLOCK)


def test_only_the_prefill_worker_is_learnt_from():
    core = core_of(prefiller("p"), decoder("d"))
    speed = core._workers.get("d").speed.seconds_for(1_000)
    route(core)
    core.prefill_answered("r", now=0.5)
    core.first_token("r", now=90.0)
    core.finish("r", Outcome.DONE, now=91.0)
    assert core._workers.get("d").speed.seconds_for(1_000) == speed
    assert core._workers.get("p").speed.seconds_for(1_000) != speed
    core.check()


def test_auto_goes_by_predicted_times_and_shows_them():
    core = core_of(prefiller("p"), decoder("d"), disagg=DisaggRules(mode=Mode.AUTO))
    decision = route(core)
    times = decision.verdict.times_ms
    assert decision.prefill is not None or times["local"] <= times["remote"]
    assert times["local"] == sum(v for k, v in times.items() if k.startswith("local_"))
    for i in range(60):  # a network that is slower than any prefill
        now = 10.0 * i
        decision = route(core, [i, *LONG], f"s{i}", now=now)
        core.prefill_answered(f"s{i}", now=now + 0.3)
        core.first_token(f"s{i}", now=now + (6.0 if decision.prefill else 3.0))
        core.finish(f"s{i}", Outcome.DONE, now=now + 6.5)
    later = route(core, [99, *LONG], "later", now=600.0)
    assert later.verdict.reason == Reason.FASTER_LOCAL
    assert later.verdict.times_ms["remote_transfer"] > 1.5 * times["remote_transfer"]


# Policies


def test_each_pool_has_its_policy():
    core = core_of(
        prefiller("p"), prefiller("q"), decoder("d"), decoder("e"),
        policy="kv", prefill_policy=make_policy("round_robin"),
        disagg=DisaggRules(mode=Mode.ALWAYS),
    )  # fmt: skip
    decisions = [route(core, [i] * 40, f"r{i}") for i in range(4)]
    assert [each.prefill.worker.id for each in decisions] == ["p", "q", "p", "q"]
    assert {each.policy for each in decisions} == {"kv"}
    assert {each.prefill.policy for each in decisions} == {"round_robin"}
    core.set_policy(make_policy("random"), PolicyPool.DECODE)
    assert route(core, request_id="s").policy == "random"


def test_policies_that_read_no_prompt_still_let_the_rule_see_what_is_cached():
    core = core_of(prefiller("p"), decoder("d"), policy="round_robin")
    assert core.needs.overlap
    route(core)
    core.prefill_answered("r", now=1.0)
    core.first_token("r", now=1.0)
    core.finish("r", Outcome.DONE, now=1.0)
    assert route(core, request_id="s", now=2.0).verdict.reason == Reason.WELL_CACHED


def test_a_fleet_without_pools_is_asked_for_no_more_than_its_policy_reads():
    core = core_of(silent("a"), policy="round_robin")
    assert not core.has_pools
    assert not core.needs.overlap
