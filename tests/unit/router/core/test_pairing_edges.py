"""Requests that two workers share, where facts are missing or change under way: guards, estimates, blocks."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.blocks import Unit
from indexer.events import BlockStored
from policies import make_policy
from policies.types import Role, Transfer
from router.core.disagg import DisaggRules, Facts, Mode, Reason, decide
from router.core.outcome import Outcome
from router.core.pool_policies import PolicyPool
from router.errors import NoWorkers
from tests.support.fleets import BLOCK, Engine, chain_of, make_core, prompt_of, publishing, request, silent

NIXL = Transfer(protocol="nixl")
SGLANG = Transfer(protocol="sglang", port=8998)
LONG = list(range(3_000))


def prefiller(name, transfer=NIXL):
    return silent(name, role=Role.PREFILL, transfer=transfer)


def decoder(name, transfer=NIXL, **fields):
    return silent(name, role=Role.DECODE, transfer=transfer, **fields)


def route(core, tokens=LONG, request_id="r", *, unit=Unit.TOKENS, **options):
    return core.route(request(request_id), prompt_of(tokens, unit=unit), now=0.0, **options)


def is_idle(core, worker_id):
    view = core.worker(worker_id)
    return (view.num_active_requests, view.active_prefill_tokens, view.active_decode_blocks) == (0, 0, 0)


# The rule


@given(prompt=st.integers(0, 20_000), held=st.integers(0, 20_000), sixteenths=st.integers(0, 15))
def test_the_remote_prefill_is_bypassed_when_dynamos_isl_bounding_bypasses_it(prompt, held, sixteenths):
    """`eff_isl`: what is not cached, unrounded; bypass iff it is < 2048 and < 0.7 of the prompt."""
    cached = min(prompt, held + sixteenths / 16)
    effective = prompt - min(Fraction(prompt), Fraction(cached))
    bypasses = effective < 2048 and 10 * effective < 7 * prompt
    found = decide(DisaggRules(), Facts(prompt_tokens=prompt, cached_tokens=cached))
    assert found.is_remote is (not bypasses and prompt > 0)


def test_dynamos_decode_guard_turns_a_bypass_into_a_hand_over():
    tokens = LONG[: 100 * BLOCK]
    for most, is_remote in ((1.0, False), (0.99, True)):
        core = make_core(
            [prefiller("p"), publishing("d", role=Role.DECODE, transfer=NIXL, num_blocks=100)],
            disagg=DisaggRules(decode_usage_max=most),
        )
        Engine(core, "d").store(tokens)
        decision = route(core, tokens)
        assert (decision.prefill is not None) is is_remote
        assert decision.verdict.reason == (Reason.DECODE_FULL if is_remote else Reason.WELL_CACHED)


def test_a_decode_worker_of_unknown_capacity_is_too_full():
    core = make_core(
        [prefiller("p"), decoder("d", num_blocks=None)], disagg=DisaggRules(decode_usage_max=0.9, ratio=2.0)
    )
    assert route(core, LONG[:20]).verdict.reason == Reason.DECODE_FULL


def test_a_prefill_pool_is_busy_when_each_of_its_workers_is():
    core = make_core(
        [prefiller("p"), prefiller("q"), decoder("d")], disagg=DisaggRules(prefill_busy_tokens=3_000)
    )
    legs = [route(core, [i, *LONG], f"r{i}").prefill for i in range(3)]
    assert {leg.worker.id for leg in legs[:2]} == {"p", "q"}
    assert legs[2] is None
    assert core.decision("r2").verdict.reason == Reason.PREFILL_BUSY
    core.prefill_answered("r0", now=1.0)
    assert route(core, [9, *LONG], "again").prefill.worker.id == legs[0].worker.id


def test_a_byte_prompt_is_judged_by_its_estimated_tokens():
    core = make_core([prefiller("p"), decoder("d")], disagg=DisaggRules(ratio=1.0))
    assert route(core, LONG[:2_000], unit=Unit.BYTES).verdict.effective_tokens == 2_000
    core.prefill_answered("r", now=0.0, prompt_tokens=4_000)
    core.finish("r", Outcome.DONE, now=0.0)
    longer = route(core, [7, *LONG[:2_000]], "s", unit=Unit.BYTES)
    assert longer.verdict.effective_tokens > 2_001
    assert longer.num_prompt_tokens == longer.verdict.effective_tokens


def test_a_prompt_of_which_only_the_length_is_known_counts_as_not_cached():
    core = make_core([prefiller("p"), decoder("d")])
    asked = request("r")
    asked.num_prompt_tokens = 300
    assert core.route(asked, None, now=0.0).verdict.reason == Reason.LITTLE_CACHED
    unknown = core.route(request("s"), None, now=0.0)
    assert (unknown.prefill, unknown.verdict.reason) == (None, Reason.NO_PROMPT)


# Who is asked


def test_decode_servers_whose_prefill_workers_are_gone_say_so():
    core = make_core([prefiller("p", SGLANG), decoder("d", SGLANG, prefills_alone=False)])
    with pytest.raises(NoWorkers, match="no prefill worker that hands over to them is up"):
        route(core, exclude={"p"})
    core.set_draining("p", True, now=0.0)
    with pytest.raises(NoWorkers, match="compute no prompts"):
        route(core)


def test_a_request_of_a_decode_server_that_left_is_not_sent_there_plain():
    core = make_core([prefiller("p", SGLANG), decoder("d", SGLANG, prefills_alone=False)])
    route(core)
    core.reconcile([prefiller("p", SGLANG)], now=1.0)
    with pytest.raises(NoWorkers, match="computes no prompts"):
        core.prefill_failed("r", Outcome.WORKER_FAILED, now=1.0, exclude={"p"})
    core.finish("r", Outcome.WORKER_FAILED, now=1.0)
    assert is_idle(core, "p")


def test_the_prefill_pool_keeps_its_turn_when_another_pool_gets_a_policy():
    core = make_core(
        [prefiller("p"), prefiller("q"), decoder("d")],
        policy="round_robin",
        disagg=DisaggRules(mode=Mode.ALWAYS),
    )
    first = route(core, request_id="a").prefill.worker.id
    core.set_policy(make_policy("kv"), PolicyPool.DECODE)
    assert route(core, request_id="b").prefill.worker.id != first


def test_a_decode_worker_that_refused_a_hand_over_is_retried_without_one():
    core = make_core([prefiller("p"), decoder("d"), decoder("e")])
    refused = route(core)
    core.finish("r", Outcome.WORKER_FAILED, now=1.0)
    others = {"p", "d", "e"} - {refused.worker.id}
    again = route(core, exclude=others, attempt=1)
    assert again.worker.id == refused.worker.id
    assert (again.prefill, again.verdict.reason) == (None, Reason.RETRIED)


# Books


def test_the_end_of_an_earlier_attempt_leaves_the_legs_of_the_present_one():
    core = make_core([prefiller("p", SGLANG), decoder("d", SGLANG, prefills_alone=False)])
    route(core, attempt=1)
    core.finish("r", Outcome.WORKER_FAILED, now=1.0, attempt=0)
    assert not is_idle(core, "p")
    assert not is_idle(core, "d")
    core.finish("r", Outcome.DONE, now=2.0, attempt=1)
    assert is_idle(core, "p")
    assert is_idle(core, "d")


def test_output_ends_the_prefill_of_legs_that_run_at_once():
    core = make_core([prefiller("p", SGLANG), decoder("d", SGLANG, prefills_alone=False)])
    route(core)
    core.output_tokens("r", 1, now=1.0)
    assert is_idle(core, "p")
    assert core.worker("d").active_output_tokens == 1


def test_a_prompt_comes_home_to_a_worker_that_has_shown_other_blocks_meanwhile():
    core = make_core([prefiller("p"), publishing("d", role=Role.DECODE, transfer=NIXL)])
    engine = Engine(core, "d", 2 * BLOCK)
    route(core)
    other = list(range(5_000, 5_000 + 4 * BLOCK))
    engine.publish([BlockStored(chain_of(other, 2 * BLOCK), None, other, 2 * BLOCK)])
    assert core.adopt_layout("d") is not None
    assert core.prefill_failed("r", Outcome.WORKER_FAILED, now=1.0, exclude={"p"}) is None
    view = core.worker("d")
    assert (view.num_active_requests, view.active_prefill_tokens) == (1, 3_000)
    assert view.active_decode_blocks == 3_000 // (2 * BLOCK)
    core.first_token("r", now=2.0)
    core.finish("r", Outcome.DONE, now=3.0)
    assert is_idle(core, "d")
    core.check()
