"""Two workers for one simulated request: hand-counted examples, and what must hold of every run."""

from __future__ import annotations

import pytest

from loadgen.sim.settings import PoolSettings
from loadgen.transfer import TransferModel
from policies.types import Role
from router.core.disagg import DisaggRules, Mode, Reason
from tests.support.simulations import random_trace, simulated, small_engine, trace_of

NETWORK = TransferModel(gbps=8.0, bytes_per_token=100_000, setup_ms=2.0)
"""0.1 ms a token."""
ONE = (0.0, 300, 3, [1, 2, 3, 4, 5])
LATER = (9.0, 300, 3, [1, 2, 3, 4, 5])
CHURN = {"restart_every": 2.0, "downtime": 1.0}


def pools(mode, num_prefill=2, num_decode=2, network=NETWORK, **rules):
    rules.setdefault("min_tokens", 300)
    return PoolSettings(
        num_prefill=num_prefill,
        num_decode=num_decode,
        rules=DisaggRules(mode=mode, **rules),
        network=network,
    )


def shared(trace, mode, *, num_workers=0, num_prefill=2, num_decode=2, network=NETWORK, **settings):
    return simulated(
        trace, num_workers=num_workers, pools=pools(mode, num_prefill, num_decode, network), **settings
    )


def workers(simulation, role):
    return [worker for worker in simulation.workers if worker.role is role]


def test_one_hand_over_by_hand():
    simulation = shared(trace_of(ONE), Mode.ALWAYS, num_prefill=1, num_decode=1)
    computed = 10 + 256 * 0.05 + 10 + 44 * 0.05
    carried = 2 + 300 * 0.1
    first_step = 10 + 300e-4
    (outcome,) = simulation.outcomes
    assert outcome.first_token_at == pytest.approx((computed + carried + first_step) / 1000)
    assert (outcome.pair.reason, outcome.pair.transferred_tokens) == (Reason.ALWAYS, 300)
    # The decode worker, idle, would have had it after computing it: the transfer is lost time.
    assert outcome.pair.other_seconds == pytest.approx(computed / 1000)
    assert outcome.pair.stall_seconds == 0.0


def test_only_what_the_decode_worker_lacks_is_transferred():
    simulation = shared(trace_of(ONE, LATER), Mode.ALWAYS, num_prefill=1, num_decode=1)
    assert [each.pair.transferred_tokens for each in simulation.outcomes] == [300, 300 - 4 * 64]
    assert [each.cached_tokens for each in simulation.outcomes] == [0, 4 * 64], "of the prefill worker"


def test_transfers_wait_for_the_port():
    slow = TransferModel(gbps=0.1, bytes_per_token=100_000, setup_ms=0.0)  # 8 ms a token
    two = trace_of((0.0, 64, 1, [1]), (0.0, 64, 1, [2]))
    simulation = shared(two, Mode.ALWAYS, num_prefill=1, num_decode=1, network=slow)
    first, second = sorted(each.first_token_at for each in simulation.outcomes)
    assert second - first == pytest.approx(64 * 0.008, abs=0.02)


def test_conditional_computes_a_cached_prompt_where_it_is_decoded():
    simulation = shared(trace_of(ONE, LATER), Mode.CONDITIONAL, num_prefill=1, num_decode=1)
    first, second = (each.pair for each in simulation.outcomes)
    assert (first.is_remote, first.reason) == (True, Reason.LONG_PROMPT)
    assert (second.is_remote, second.reason) == (False, Reason.WELL_CACHED)
    assert second.transferred_tokens == 0
    assert second.other_seconds > simulation.outcomes[1].first_token_at - simulation.outcomes[1].sent_at


def test_a_whole_worker_shares_nothing():
    simulation = shared(random_trace(3), Mode.ALWAYS, num_workers=1)
    pairs = [each.pair for each in simulation.outcomes]
    assert None in pairs
    assert any(pairs)


@pytest.mark.parametrize("churn", [{}, CHURN], ids=["steady", "churn"])
@pytest.mark.parametrize("mode", Mode)
def test_nothing_is_left_behind(mode, churn):
    """Every request ends, every booking and every block with it."""
    simulation = shared(random_trace(1, 300, rate=20.0), mode, **churn)
    assert simulation.legs.num_under_way == 0
    for worker in simulation.workers:
        assert simulation.core.worker(worker.id).num_active_requests == 0
        assert not worker.requests
    for outcome in simulation.outcomes:
        assert churn or outcome.ended_at is not None
        if outcome.ended_at is not None:
            assert outcome.sent_at < outcome.first_token_at <= outcome.ended_at


@pytest.mark.parametrize("mode", Mode)
def test_what_is_transferred_is_what_decode_lacks(mode):
    """One request at a time: what is lacking does not change while it is under way."""
    simulation = shared(random_trace(2, 200), mode, concurrency=1)
    moved = sum(each.pair.transferred_tokens for each in simulation.outcomes)
    decode = [worker.engine.counters for worker in workers(simulation, Role.DECODE)]
    # The last token of a prompt is computed again.
    num_handed_over = sum(each.pair.is_handed_over for each in simulation.outcomes)
    assert sum(each.transferred_prompt_tokens for each in decode) == moved - num_handed_over


@pytest.mark.parametrize("mode", Mode)
def test_the_verdict_is_what_happens_and_what_was_kept_is_fetched(mode):
    simulation = shared(random_trace(2, 200), mode)
    assert [worker.engine.num_held for worker in workers(simulation, Role.PREFILL)] == [0, 0]
    for outcome in simulation.outcomes:
        assert outcome.pair.is_remote == outcome.pair.is_handed_over


def test_never_leaves_prefill_workers_idle_and_always_computes_no_prompt_on_decode_workers():
    never, always = (shared(random_trace(2, 200), mode) for mode in (Mode.NEVER, Mode.ALWAYS))
    assert not any(each.pair.is_remote for each in never.outcomes)
    assert [worker.total_busy_seconds for worker in workers(never, Role.PREFILL)] == [0.0, 0.0]
    computed = [worker.engine.counters.computed_prompt_tokens for worker in workers(always, Role.DECODE)]
    assert sum(computed) == len(always.outcomes), "the last token of each"


def test_a_seed_decides_everything():
    def times(seed):
        settings = {"engine": small_engine(noise=0.05), "event_loss": 0.1, "seed": seed} | CHURN
        simulation = shared(random_trace(2, 200), Mode.AUTO, **settings)
        return [(each.first_token_at, each.ended_at, each.cached_tokens) for each in simulation.outcomes]

    assert times(7) == times(7)
    assert times(7) != times(8)


def test_prompts_of_a_prefill_worker_that_dies_are_computed_all_the_same():
    simulation = shared(random_trace(1, 300, rate=40.0), Mode.ALWAYS, num_prefill=1, **CHURN)
    fallen_back = [
        each for each in simulation.outcomes if each.pair.is_remote and not each.pair.is_handed_over
    ]
    assert any(each.ended_at is not None for each in fallen_back)
    assert any(each.pair.reason == Reason.NO_PREFILL_WORKER for each in simulation.outcomes)


def test_a_transfer_from_a_worker_that_dies_is_given_up():
    slow = TransferModel(gbps=0.1, bytes_per_token=100_000, setup_ms=0.0)
    simulation = shared(random_trace(5, 100), Mode.ALWAYS, network=slow, restart_every=3.0, downtime=1.0)
    broken = [each for each in simulation.outcomes if each.pair.is_remote and not each.pair.is_handed_over]
    assert broken
    assert all(each.pair.transferred_tokens == 0 for each in broken)
