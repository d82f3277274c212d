"""The time of requests that two workers share: what each leg adds to a queue and teaches, and what is
foretold."""

import pytest

from policies import make_policy
from policies.types import Role, Transfer
from router.core.disagg import DisaggRules, Mode, Reason
from router.core.limits import PREFILL_PRIOR, TRANSFER_PRIOR
from router.core.outcome import Outcome
from tests.support.fleets import make_core, prompt_of, request, silent

NIXL = Transfer(protocol="nixl")
NUM_TOKENS = 4_000


def core_of(mode, policy="kv", names=("p", "d"), **options):
    roles = {"p": Role.PREFILL, "d": Role.DECODE, "e": Role.DECODE, "w": Role.BOTH}
    workers = [
        silent(name, role=roles[name], transfer=None if name == "w" else NIXL, num_blocks=10**6)
        for name in names
    ]
    return make_core(workers, policy, disagg=DisaggRules(mode=mode), **options)


def route(core, request_id, *, now, stream=True, seed=0, num_tokens=NUM_TOKENS, **options):
    tokens = [seed] * num_tokens
    return core.route(request(request_id, stream=stream), prompt_of(tokens), now=now, **options)


def times(core, now, *, seed=99, num_tokens=NUM_TOKENS):
    """As a new prompt would see them."""
    asked = request("preview")
    return core.preview(asked, prompt_of([seed] * num_tokens), now=now).verdict.times_ms


def stream(core, request_id, *, now):
    """A prompt of one token that decodes on d, computed there in the time that the prior says."""
    asked = request(request_id)
    asked.stays_whole = "for this test"
    core.route(asked, prompt_of([1]), now=now)
    core.first_token(request_id, now=now + times(core, now, num_tokens=1)["local_prefill"] / 1000)


def busy(mode=Mode.AUTO, num_streams=40, **options):
    """So many streams on the decode worker that a prompt goes elsewhere."""
    core = core_of(mode, **options)
    for number in range(num_streams):
        stream(core, f"s{number}", now=1.0 + number)
    return core


def test_a_prompt_that_is_computed_elsewhere_joins_no_queue_of_the_decode_worker():
    core = busy()
    decision = route(core, "r", now=100.0)
    assert decision.verdict.reason == Reason.FASTER_REMOTE
    seen = times(core, 100.0)
    assert seen["local_wait"] == 0
    assert seen["remote_wait"] == pytest.approx(decision.verdict.times_ms["remote_prefill"])
    core.prefill_answered("r", now=100.5)
    assert times(core, 100.5)["remote_wait"] == 0
    core.check()


def test_its_answer_teaches_the_prefill_of_both_and_its_first_token_the_transfer_alone():
    core, now = busy(), 100.0
    base, token, pair = PREFILL_PRIOR
    for number in range(30):
        request_id = f"r{number}"
        assert route(core, request_id, now=now, seed=number).prefill is not None
        core.prefill_answered(request_id, now=now + 0.1)
        core.first_token(request_id, now=now + 0.3)
        core.finish(request_id, Outcome.DONE, now=now + 0.4)
        now += 1
    seen = times(core, now)
    prior = base + token * NUM_TOKENS + pair * NUM_TOKENS**2
    assert seen["remote_prefill"] < 0.7 * prior
    assert seen["local_prefill"] < 0.7 * prior  # equal engines learn from each other
    assert seen["remote_transfer"] == pytest.approx(200 - seen["remote_step"], abs=15)


def test_a_leg_is_no_stream_of_its_worker():
    core = busy()
    before = times(core, 100.0)
    route(core, "r", now=100.0)
    core.prefill_answered("r", now=100.1)
    core.first_token("r", now=100.2)
    after = times(core, 100.3)
    assert after["remote_wait"] == 0
    streams = [seen["local_streams"] / seen["local_prefill"] / 0.1 for seen in (before, after)]
    assert [round(each) for each in streams] == [40, 41]


def test_an_answer_in_one_piece_decodes_from_when_it_is_foretold_and_teaches_no_transfer():
    core = busy()
    prior_ms = TRANSFER_PRIOR[0] + TRANSFER_PRIOR[1] * NUM_TOKENS
    route(core, "r", now=100.0, stream=False)
    core.prefill_answered("r", now=100.1)

    def num_streams(now):
        core.expire(now=now)
        seen = times(core, now)
        return round(seen["local_streams"] / seen["local_prefill"] / 0.1)

    assert num_streams(100.1 + 0.9 * prior_ms / 1000) == 40
    assert num_streams(100.1 + 1.1 * prior_ms / 1000) == 41
    assert times(core, 150.0)["remote_transfer"] == pytest.approx(prior_ms)  # and is not late
    core.first_token("r", now=160.0)  # the head of the whole answer
    assert times(core, 160.0)["remote_transfer"] == pytest.approx(prior_ms)
    core.finish("r", Outcome.DONE, now=160.0)
    core.check()


def test_a_prompt_that_comes_back_to_its_decode_worker_waits_there():
    core = busy()
    route(core, "r", now=100.0)
    assert core.prefill_failed("r", Outcome.WORKER_FAILED, now=101.0, exclude={"p"}) is None
    seen = times(core, 101.0)
    assert seen["remote_wait"] == 0
    assert seen["local_wait"] > 200
    core.finish("r", Outcome.WORKER_FAILED, now=102.0)
    assert times(core, 102.0)["local_wait"] == 0
    core.check()


@pytest.mark.parametrize("way_out", ["finished", "worker gone"])
def test_a_late_first_hand_over_keeps_others_home_until_it_has_ended(way_out):
    core = busy()
    route(core, "r", now=100.0)
    core.prefill_answered("r", now=100.4)
    assert times(core, 100.5)["remote_transfer"] == pytest.approx(50)
    assert times(core, 110.4)["remote_transfer"] == pytest.approx(9_000)
    if way_out == "finished":
        core.finish("r", Outcome.CLIENT_GONE, now=110.4)
    else:
        workers = [view.worker for view in core.workers()]
        core.reconcile([worker for worker in workers if worker.id != "d"], now=110.4)
        core.reconcile(workers, now=110.4)
    assert times(core, 110.4)["remote_transfer"] == pytest.approx(50)
    core.check()


def test_where_nothing_streams_prompts_stay():
    decision = route(core_of(Mode.AUTO), "r", now=1.0)
    assert decision.verdict.reason == Reason.FASTER_LOCAL
    assert decision.prefill is None


def test_both_legs_at_once_are_told_apart_by_what_was_foretold():
    core = busy()
    route(core, "r", now=100.0)
    core.first_token("r", now=100.2)  # ends the leg too; sooner than the prefill alone was foretold
    assert times(core, 100.2)["remote_transfer"] < TRANSFER_PRIOR[0] + TRANSFER_PRIOR[1] * NUM_TOKENS
    core.check()


def test_without_foretold_times_both_legs_at_once_teach_no_transfer():
    core = core_of(Mode.ALWAYS, "latency", prefill_policy=None)
    route(core, "r", now=1.0)
    core.first_token("r", now=9.0)
    handed_over = core.preview(request("x"), prompt_of([5] * NUM_TOKENS), now=9.0)
    assert handed_over.candidates.times.handed_over_ms[0] < 8_000


def test_latency_leaves_a_decode_worker_whose_own_queue_outlasts_the_trip():
    core = core_of(Mode.ALWAYS, "latency", names=("p", "d", "e"))
    for number in range(9):
        asked = request(f"s{number}")
        asked.stays_whole = "for this test"
        core.route(asked, prompt_of([number] * NUM_TOKENS), now=1.0, exclude={"e"})
    decision = route(core, "r", now=1.0, seed=50)
    assert decision.worker.id == "e"
    queued, free = decision.candidates.times.handed_over_ms
    assert queued > free + 2_000


def test_latency_judges_each_row_by_the_rules():
    core = core_of(Mode.CONDITIONAL, "latency", names=("p", "d", "e", "w"))
    route(core, "first", now=1.0, exclude={"e", "w"})
    core.prefill_answered("first", now=1.5)
    core.first_token("first", now=1.6)
    core.finish("first", Outcome.DONE, now=1.7)
    decision = route(core, "again", now=2.0)
    times = decision.candidates.times.handed_over_ms
    assert [ms is None for ms in times] == [True, False, True]  # d holds it, e does not, w is whole
    assert decision.worker.id == "d"
    assert decision.verdict.reason == Reason.WELL_CACHED


def test_fleets_without_pools_have_no_such_column():
    core = core_of(Mode.AUTO, "latency", names=("w",))
    assert route(core, "r", now=1.0).candidates.times.handed_over_ms is None


def test_prompts_that_come_to_prefill_workers_are_counted_apart():
    core = core_of(Mode.ALWAYS, "latency")
    for number in range(5):
        route(core, f"r{number}", now=1.0, seed=number)
    decision = core.preview(request("x"), prompt_of([77] * NUM_TOKENS), now=1.0)
    assert decision.candidates.times.arrivals_per_ms == 0
    assert decision.prefill.candidates.times.arrivals_per_ms == pytest.approx(5 / 20_000)


def test_auto_knows_what_prefill_workers_hold_whatever_their_policy_reads():
    core = busy(prefill_policy=make_policy("round_robin"))
    route(core, "r", now=100.0, seed=3)
    core.prefill_answered("r", now=100.5)
    core.finish("r", Outcome.CLIENT_GONE, now=100.6)
    assert times(core, 101.0, seed=3)["remote_prefill"] < times(core, 101.0, seed=4)["remote_prefill"] / 2
