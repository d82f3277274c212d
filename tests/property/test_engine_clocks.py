"""Under `latency`, whatever happens to requests and workers: a clock holds what is in flight, and when that
is nothing, exactly nothing."""

from __future__ import annotations

import math

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from router.core.health import HealthSign
from router.core.outcome import Outcome
from router.errors import NoWorkers
from tests.support.fleets import make_core, prompt_of, request, silent

FLEET = {name: silent(name, num_blocks=200) for name in "abc"}

ids = st.sampled_from([f"r{number}" for number in range(12)])


class Clocks(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.core = make_core(list(FLEET.values()), "latency")
        self.now = 0.0
        self.flights = {}  # id -> [worker, prompt tokens, output tokens, is computed]

    @rule(seconds=st.sampled_from([0.0, 0.0005, 0.01, 0.3, 5.0, 200.0]))
    def time_passes(self, seconds):
        self.now += seconds

    @rule(request_id=ids, num_tokens=st.integers(0, 3000), kind=st.integers(0, 2), stream=st.booleans())
    def route(self, request_id, num_tokens, kind, stream):
        if request_id in self.flights:
            return
        try:
            decision = self.core.route(
                request(request_id, stream=stream), prompt_of([kind] * num_tokens), now=self.now
            )
        except NoWorkers:
            return
        assert all(math.isfinite(cost) and cost >= 0 for cost in decision.choice.costs)
        self.flights[request_id] = [decision.worker.id, num_tokens, 0]

    @rule(request_id=ids)
    def first_token(self, request_id):
        self.core.first_token(request_id, now=self.now)

    @rule(request_id=ids, num=st.integers(1, 5))
    def output(self, request_id, num):
        self.core.output_tokens(request_id, num, now=self.now)
        if request_id in self.flights:
            self.flights[request_id][2] += num

    @rule(request_id=ids, outcome=st.sampled_from(Outcome))
    def finish(self, request_id, outcome):
        self.core.finish(request_id, outcome, now=self.now)
        self.flights.pop(request_id, None)

    @rule()
    def expire(self):
        self.core.expire(now=self.now)

    @rule(names=st.sets(st.sampled_from("abc"), min_size=1))
    def reconcile(self, names):
        self.core.reconcile([FLEET[name] for name in sorted(names)], now=self.now)
        self.flights = {key: flight for key, flight in self.flights.items() if flight[0] in names}

    @rule(name=st.sampled_from("abc"), sign=st.sampled_from(HealthSign))
    def health(self, name, sign):
        self.core.observe_health(name, sign, now=self.now)

    @invariant()
    def clocks_hold_what_is_in_flight(self):
        self.core.check()
        candidates = self.core.preview(request("p"), prompt_of([9] * 20), now=self.now).candidates
        times = candidates.times
        for row, worker in enumerate(candidates.workers):
            mine = [flight for flight in self.flights.values() if flight[0] == worker.id]
            assert times.resident_tokens[row] == sum(flight[1] + flight[2] for flight in mine)
            assert times.num_decoding[row] <= len(mine)
            assert all(math.isfinite(each) and each >= 0 for each in times.prefill[row] + times.step[row])
            if times.num_decoding[row] == len(mine):
                assert times.wait_ms[row] == 0
            if not mine:
                assert times.decoding_tokens[row] == times.resident_tokens[row] == 0


Clocks.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestClocks = Clocks.TestCase
