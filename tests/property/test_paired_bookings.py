"""Requests on two workers under any interleaving: the books stay right, and nothing is left when all have
ended."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from policies.types import Role, Transfer
from router.core.disagg import DisaggRules, Mode
from router.core.health import HealthSign
from router.core.outcome import Outcome
from router.errors import NoWorkers
from tests.support.fleets import make_core, prompt_of, request, silent

NIXL, SGLANG = Transfer(protocol="nixl"), Transfer(protocol="sglang", port=8998)
FLEET = {
    "p": silent("p", role=Role.PREFILL, transfer=NIXL),
    "q": silent("q", role=Role.PREFILL, transfer=NIXL),
    "s": silent("s", role=Role.PREFILL, transfer=SGLANG),
    "d": silent("d", role=Role.DECODE, transfer=NIXL),
    "e": silent("e", role=Role.DECODE, transfer=SGLANG, prefills_alone=False),
    "w": silent("w"),
}
NAMES = sorted(FLEET)
ids = st.integers(0, 12).map("r{}".format)


class PairedBookings(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.now = 1.0
        self.present = set(FLEET)
        self.core = make_core(list(FLEET.values()), disagg=DisaggRules(mode=Mode.AUTO))
        self.in_flight = set()

    @rule(request_id=ids, family=st.integers(0, 2), length=st.integers(0, 5_000), stream=st.booleans(),
          stays=st.sampled_from(["", "a batch"]), attempt=st.integers(0, 1),
          tried=st.sets(st.sampled_from(NAMES)))  # fmt: skip
    def route(self, request_id, family, length, stream, stays, attempt, tried):
        if request_id in self.in_flight:
            return
        asked = request(request_id, stream=stream)
        asked.stays_whole = stays
        try:
            decision = self.core.route(
                asked, prompt_of([family] * length), now=self.now, exclude=tried, attempt=attempt
            )
        except NoWorkers:
            return
        self.in_flight.add(request_id)
        assert decision.worker.role is not Role.PREFILL
        if (leg := decision.prefill) is not None:
            assert not stays
            assert leg.worker.role is Role.PREFILL
            assert leg.worker.transfer.protocol == decision.worker.transfer.protocol
            assert {leg.worker.id, decision.worker.id}.isdisjoint(tried)
        else:
            assert decision.worker.prefills_alone

    @rule(request_id=ids)
    def prefill_answered(self, request_id):
        self.core.prefill_answered(request_id, now=self.now, prompt_tokens=10, cached_tokens=0)

    @rule(request_id=ids, outcome=st.sampled_from(Outcome), tried=st.sets(st.sampled_from(NAMES)))
    def prefill_failed(self, request_id, outcome, tried):
        try:
            decision = self.core.prefill_failed(request_id, outcome, now=self.now, exclude=tried)
        except NoWorkers:
            self.core.finish(request_id, outcome, now=self.now)
            self.in_flight.discard(request_id)
        else:
            assert decision is None or decision.worker.id not in tried

    @rule(request_id=ids, tokens=st.integers(0, 3))
    def output(self, request_id, tokens):
        self.core.first_token(request_id, now=self.now)
        self.core.output_tokens(request_id, tokens, now=self.now)

    @rule(request_id=ids, outcome=st.sampled_from(Outcome))
    def finish(self, request_id, outcome):
        self.core.finish(request_id, outcome, now=self.now)
        self.in_flight.discard(request_id)

    @rule(name=st.sampled_from(NAMES))
    def leave_or_return(self, name):
        self.present ^= {name}
        self.core.reconcile([FLEET[each] for each in sorted(self.present)], now=self.now)

    @rule(name=st.sampled_from(NAMES), sign=st.sampled_from(HealthSign))
    def health(self, name, sign):
        self.core.observe_health(name, sign, now=self.now)

    @rule(seconds=st.floats(0.001, 30))
    def time_passes(self, seconds):
        self.now += seconds
        self.core.expire(now=self.now)

    @invariant()
    def books_are_right(self):
        self.core.check()

    def teardown(self):
        for request_id in sorted(self.in_flight):
            self.core.finish(request_id, Outcome.DONE, now=self.now)
        for view in self.core.workers():
            assert (view.num_active_requests, view.active_prefill_tokens) == (0, 0)
            assert view.active_decode_blocks == 0
        self.core.check()


PairedBookings.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestPairedBookings = PairedBookings.TestCase
