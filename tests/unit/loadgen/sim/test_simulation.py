"""The simulated fleet by hand-counted examples, and what must hold of every run."""

from __future__ import annotations

from collections import Counter
from itertools import takewhile

import pytest

from loadgen.sim.settings import SimSettings
from loadgen.sim.simulation import Simulation
from loadgen.sim.wire import decode_events
from policies import parse_policy
from tests.support.simulations import random_trace, simulated, small_engine, trace_of

POLICIES = ["random", "round_robin", "least_loaded", "power_of_two", "kv"]


def times(simulation):
    return [
        (each.sent_at, each.first_token_at, each.ended_at, each.cached_tokens) for each in simulation.outcomes
    ]


def test_one_request_by_hand():
    simulation = simulated(trace_of((5.0, 300, 3, [1, 2, 3, 4, 5])), num_workers=1)
    # Two chunks of 256 and 44 tokens, then two decode steps that look at 301 and 302 tokens.
    first = (10 + 256 * 0.05 + 10 + 44 * 0.05) / 1000
    end = first + (10 + 0.0301 + 10 + 0.0302) / 1000
    (outcome,) = simulation.outcomes
    assert outcome.sent_at == 0.0, "the clock begins with the first arrival"
    assert outcome.first_token_at == pytest.approx(first)
    assert outcome.ended_at == pytest.approx(end)
    assert simulation.result.simulated_seconds == pytest.approx(end)
    assert simulation.result.busy_seconds == [pytest.approx(end)], "work is neither lost nor invented"


def test_the_second_time_the_prefix_is_cached():
    simulation = simulated(trace_of((0.0, 300, 3, [1, 2, 3, 4, 5]), (9.0, 300, 3, [1, 2, 3, 4, 5])))
    assert [each.cached_tokens for each in simulation.outcomes] == [0, 256]


def test_an_arrival_waits_for_the_end_of_the_step_in_progress_only():
    simulation = simulated(
        trace_of((0.0, 64, 1000, [1]), (1.0, 64, 1, [2])), num_workers=1, engine=small_engine(num_blocks=65)
    )
    late = simulation.outcomes[1]
    step = 0.01 + 64 * 0.05 / 1000
    assert step < late.first_token_at - late.sent_at < step + 0.0102


@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_is_answered_in_order_of_its_own_times(policy):
    simulation = simulated(random_trace(1), policy)
    for sent_at, first, end, cached in times(simulation):
        assert 0 <= sent_at < first <= end
        assert cached % 64 == 0
    for request, outcome in zip(simulation._trace.requests, simulation.outcomes, strict=True):
        assert outcome.cached_tokens < request.input_tokens
    assert max(simulation.result.busy_seconds) <= simulation.result.simulated_seconds
    counters = [worker.engine.counters for worker in simulation.workers]
    assert sum(each.finished for each in counters) == len(simulation.outcomes)
    computed = sum(request.input_tokens for request in simulation._trace.requests)
    cached = sum(outcome.cached_tokens for outcome in simulation.outcomes)
    assert sum(each.computed_prompt_tokens for each in counters) >= computed - cached


@pytest.mark.parametrize("policy", POLICIES)
def test_a_seed_decides_everything(policy):
    settings = {"engine": small_engine(noise=0.05), "event_loss": 0.1, "restart_every": 20.0, "downtime": 2.0}
    runs = [simulated(random_trace(2), policy, seed=seed, **settings) for seed in (7, 7, 8)]
    first, again, other = map(times, runs)
    assert first == again
    assert first != other


def test_a_closed_loop_keeps_as_many_under_way_as_it_has_clients():
    simulation = simulated(random_trace(3), concurrency=5)
    changes = sorted(
        change for sent_at, _first, end, _cached in times(simulation) for change in ((sent_at, 1), (end, -1))
    )
    under_way, seen = 0, set()
    for _at, change in changes:
        under_way += change
        seen.add(under_way)
    assert max(seen) == 5
    assert simulation.result.simulated_seconds < simulated(random_trace(3)).result.simulated_seconds


def test_a_session_waits_for_its_answers():
    requests = [(0.0, 200, 5, [1, 2, 3]), (0.0, 260, 5, [1, 2, 3, 4]), (0.0, 320, 5, [1, 2, 3, 4, 5])]
    simulation = simulated(trace_of(*requests, session="s"))
    ends = [outcome.ended_at for outcome in simulation.outcomes]
    assert [outcome.sent_at for outcome in simulation.outcomes] == [0.0, *ends[:2]]
    assert [outcome.cached_tokens for outcome in simulation.outcomes] == [0, 192, 256]


class _Watched(Simulation):
    """Compares what the index says of the chosen worker with what that has published, lost messages
    included."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.num_overlaps = self.num_invented = 0
        self._loses_last: dict[int, bool] = {}
        self._copies = [Counter() for _worker in self.workers]
        self._pass_on, self.channel.send = self.channel.send, self._note
        self._decide, self.core.route = self.core.route, self._compare

    def _note(self, worker, message):
        before = self.channel.num_lost
        self._pass_on(worker, message)
        self._loses_last[worker.slot] = self.channel.num_lost > before
        for event in decode_events(message.payload).events:
            change = -1 if event.is_removal else 1
            for block_hash in event.block_hashes:
                self._copies[worker.slot][block_hash] += change

    def _compare(self, asked, prompt, **keywords):
        decision = self._decide(asked, prompt, **keywords)
        (chain,) = prompt.chains.values()
        exact = decision.details["exact_blocks"]
        copies = self._copies[decision.slot]
        held = len(list(takewhile(copies.__getitem__, chain)))
        # What reports have taught stands in for lost history, and goes by guess when its removal is told.
        is_told = not self.core.feed.stats(decision.slot).num_learnt_blocks
        self.num_overlaps += is_told and exact > 0
        # A loss shows when the next message comes; until then nobody can know of it.
        self.num_invented += is_told and exact > held and not self._loses_last.get(decision.slot)
        return decision


@pytest.mark.parametrize("can_replay", [True, False])
def test_lost_events_never_become_invented_overlap(can_replay):
    """Events without delay: the index holds what the worker holds, or less."""
    settings = SimSettings(
        num_workers=3, engine=small_engine(), event_delay=0.0, event_loss=0.2, event_replay=can_replay
    )
    simulation = _Watched(random_trace(4, 400), parse_policy("kv"), settings)
    simulation.run()
    assert simulation.channel.num_lost > 20
    assert simulation.num_overlaps > 5
    assert simulation.num_invented == 0


def test_without_loss_the_index_says_what_is_held():
    settings = SimSettings(num_workers=3, engine=small_engine(), event_delay=0.0)
    simulation = _Watched(random_trace(4, 400), parse_policy("kv"), settings)
    simulation.run()
    assert simulation.num_overlaps > 100
    assert simulation.num_invented == 0


def test_workers_that_die_lose_streams_but_no_request_that_had_not_begun():
    simulation = simulated(random_trace(5, 300, rate=40.0), restart_every=2.0, downtime=1.0)
    failed = [outcome for outcome in simulation.outcomes if outcome.ended_at is None]
    assert any(worker.incarnation for worker in simulation.workers)
    assert any(outcome.num_attempts > 1 for outcome in simulation.outcomes)
    assert failed
    assert all(outcome.first_token_at is not None or outcome.num_attempts == 3 for outcome in failed)
    stats = [simulation.core.feed.stats(worker.slot) for worker in simulation.workers]
    assert sum(each.num_restarts for each in stats) > 0, "the index has noticed"


def test_no_fleet_no_answers():
    simulation = simulated(random_trace(6, 40), num_workers=1, restart_every=1.0, downtime=1000.0)
    assert sum(outcome.ended_at is None for outcome in simulation.outcomes) > 20
