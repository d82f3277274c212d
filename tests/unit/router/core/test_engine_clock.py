"""One worker's clock, asked and told as `timekeeper` does it; times of a queue are by the priors."""

from dataclasses import dataclass, field

import pytest

from indexer.blocks import Unit
from policies.engine_time import PrefillTime, StepTime
from router.core.engine_clock import EngineClock, FleetShape
from router.core.limits import BATCHED_TOKENS, PREFILL_PRIOR, STEP_PRIOR
from router.core.loads import ActiveSequences, Booking

PREFILL, STEP = PrefillTime(*PREFILL_PRIOR), StepTime(*STEP_PRIOR)
MS = 0.001


@dataclass
class NoShape:
    """Keeps the prior, and what it was shown."""

    coefficients: tuple[float, float, float]
    samples: list = field(default_factory=list)

    def observe(self, x, y, weight):
        self.samples.append((x, y))


class Room:
    """A worker's loads and its clock."""

    def __init__(self):
        self.loads = ActiveSequences()
        self.loads.add_worker(0)
        self.prefill, self.step = NoShape(PREFILL_PRIOR), NoShape(STEP_PRIOR)
        self.clock = EngineClock(FleetShape(self.prefill, self.step), self.loads.of_worker(0))

    def send(self, request_id, num_tokens=1000, *, cached=0, now=0.0, stream=True):
        booking = Booking(
            request_id=request_id,
            attempt=0,
            slot=0,
            unit=Unit.TOKENS,
            chain=(),
            num_unshared_blocks=0,
            num_tokens=num_tokens,
            prefill_tokens=num_tokens - cached,
            is_streamed=stream,
        )
        booking.timing = self.clock.book(booking, now)
        self.loads.book(booking)
        return booking

    def answer(self, request_id, now):
        booking = self.loads.get(request_id)
        self.clock.computed(booking, booking.timing, now)
        self.loads.release_prefill(booking)

    def token(self, request_id, now, num=1):
        booking = self.loads.get(request_id)
        self.loads.add_output(booking, num)
        self.clock.output(booking.timing, num, now)

    def leave(self, request_id, now):
        self.clock.leaves(request_id, now)
        self.loads.free(self.loads.get(request_id))

    def wait(self, now=0.0):
        self.clock.check()
        return self.clock.wait_ms(now)


@pytest.fixture
def room():
    return Room()


# The queue


def test_an_idle_worker_lets_nobody_wait(room):
    assert room.wait() == 0


def test_a_prompt_lengthens_the_queue_by_what_its_uncached_part_takes(room):
    room.send("a", 8000, cached=6000)
    assert room.wait() == pytest.approx(PREFILL.of(8000, 6000))
    room.send("b", 100)
    assert room.wait() == pytest.approx(PREFILL.of(8000, 6000) + PREFILL.of(100, 0))


def test_of_a_prompt_that_is_cached_whole_the_last_token_is_computed(room):
    room.send("a", 8000, cached=8000)
    assert room.wait() == pytest.approx(PREFILL.of(8000, 7999))


def test_a_request_without_a_known_prompt_takes_the_base(room):
    room.send("a", 0)
    assert room.wait() == PREFILL.base


def test_where_others_decode_each_chunk_takes_a_step_of_theirs_too(room):
    room.send("a", 1000)
    room.answer("a", now=0.1)
    room.send("b", BATCHED_TOKENS + 1, now=0.2)
    expected = PREFILL.of(BATCHED_TOKENS + 1, 0) + 2 * STEP.of(1, 1000)
    assert room.wait(0.2) == pytest.approx(expected)


def test_the_queue_drains_by_itself(room):
    room.send("a", 1000)
    whole = room.wait()
    assert room.wait(now=0.02) == pytest.approx(whole - 20)
    assert room.wait(now=10.0) == 0
    room.send("b", 1000, now=10.0)
    assert room.wait(now=10.0) == pytest.approx(whole), "what is past is not made up for"


def test_a_first_token_sets_the_queue_right(room):
    for name in "abc":
        room.send(name, 1000)
    room.answer("a", now=2.0)  # much later than expected
    assert room.wait(2.0) == pytest.approx(2 * PREFILL.of(1000, 0))
    room.answer("b", now=2.001)  # much sooner
    assert room.wait(2.001) == pytest.approx(PREFILL.of(1000, 0))


def test_what_ends_before_its_first_token_leaves_the_queue(room):
    room.send("a", 1000)
    room.send("b", 3000)
    room.leave("a", now=0.0)
    assert room.wait() == pytest.approx(PREFILL.of(3000, 0))
    room.leave("b", now=0.0)
    assert room.wait() == 0


def test_what_ends_after_its_first_token_leaves_the_queue_alone(room):
    room.send("a", 1000)
    room.answer("a", now=0.1)
    room.send("b", 1000, now=0.1)
    before = room.wait(0.1)
    room.leave("a", now=0.1)
    assert room.wait(0.1) == before


def test_a_storm_of_cancellations_leaves_exactly_nothing(room):
    for number in range(50):
        room.send(f"r{number}", 100 + 37 * number, now=0.01 * number)
    for number in reversed(range(50)):
        room.leave(f"r{number}", now=0.6)
    assert room.wait(0.0) == 0.0


def test_a_prefill_that_is_taken_to_be_over_leaves_the_queue(room):
    room.send("a", 1000, stream=False)
    room.clock.foretold("a", 0.0)
    assert room.wait() == 0


# Samples of prefill


def samples(room, now=1e3):
    room.clock.learn(now)
    return [(x[1], pytest.approx(y)) for x, y in room.prefill.samples]


def test_a_lone_prompt_shows_what_it_took(room):
    room.send("a", 8000, cached=6000, now=1.0)
    room.answer("a", now=1.2)
    room.clock.learn(9.0)
    assert room.prefill.samples == [((1.0, 2000.0, 8000.0**2 - 6000.0**2), pytest.approx(200))]


def test_a_prompt_that_waited_shows_only_its_own_time(room):
    room.send("a", 1000, now=0.0)
    room.send("b", 1000, now=0.0)
    room.answer("a", now=0.1)
    room.answer("b", now=0.25)
    beside = STEP.of(1, 1000) - STEP.base  # a decodes while b is computed
    assert samples(room) == [(1000, 100), (1000, 150 - beside)]


def test_first_tokens_that_come_together_are_one_sample(room):
    room.send("a", 1000, now=0.0)
    room.send("b", 500, now=0.05)
    room.answer("a", now=0.2)
    room.answer("b", now=0.2015)
    room.clock.learn(9.0)
    assert room.prefill.samples == [((2.0, 1500.0, 1000.0**2 + 500.0**2), pytest.approx(201.5))]


def test_a_sample_is_learnt_once_nothing_more_can_belong_to_it(room):
    room.send("a", 1000, now=0.0)
    room.send("b", 1000, now=0.0)
    room.answer("a", now=0.1)
    assert room.prefill.samples == []
    room.answer("b", now=0.2)
    assert len(room.prefill.samples) == 1


def test_what_decoding_took_meanwhile_is_not_prefill(room):
    room.send("a", 1000, now=0.0)
    room.answer("a", now=0.1)
    room.send("b", 1000, now=1.0)
    room.answer("b", now=1.2)
    assert samples(room)[-1] == (1000, 200 - (STEP.of(1, 1000) - STEP.base))


def test_a_pause_is_no_speed(room):
    room.send("a", 1000, now=0.0)
    room.answer("a", now=60.0)
    assert samples(room) == [(1000, 4 * PREFILL.of(1000, 0) + 50)]


def test_an_answer_in_one_piece_that_was_sent_before_belongs_to_the_sample(room):
    """It shows no first token, but engines compute prompts in the order in which they came."""
    room.send("a", 3000, now=0.0, stream=False)
    room.send("b", 1000, now=0.1)
    room.send("c", 1000, now=0.2, stream=False)
    room.answer("b", now=0.4)
    assert samples(room) == [(4000, 400)]
    assert room.wait(0.4) == pytest.approx(PREFILL.of(1000, 0)), "c is still to come"


def test_a_prompt_of_unknown_length_is_no_sample(room):
    """It would pass for an engine that takes long over nothing."""
    room.send("a", 0)
    room.send("b", 1000)
    room.answer("a", now=0.5)
    room.answer("b", now=0.501)
    assert samples(room) == []


def test_an_answer_in_one_piece_is_no_sample(room):
    room.send("a", 1000, stream=False)
    room.answer("a", now=5.0)
    assert samples(room) == []


# Samples of decoding


def gaps(room):
    return [(x[1], x[2], pytest.approx(y)) for x, y in room.step.samples]


def test_one_gap_in_four_steps_is_a_sample(room):
    for name in "ab":
        room.send(name, 1000)
        room.answer(name, now=0.1)
    for step in range(1, 10):
        for name in "ab":
            room.token(name, now=0.1 + 0.03 * step)
    assert gaps(room) == [(2, 2001, 30), (2, 2009, 30), (2, 2017, 30)]


def test_tokens_that_come_at_once_share_their_gap(room):
    room.send("a", 1000)
    room.answer("a", now=0.1)
    room.token("a", now=0.16, num=2)
    assert gaps(room) == [(1, 1002, 30)]


def test_tokens_that_are_told_now_and_then_are_samples_of_the_mean_step(room):
    for name in "ab":
        room.send(name, 1000)
        room.answer(name, now=0.1)
    for name in "ab":
        room.token(name, now=1.1, num=40)
    assert gaps(room) == [(2, 2040, 25), (2, 2080, 25)]


def test_gaps_beside_prefill_show_no_step_but_count_as_what_streams_see(room):
    room.send("a", 1000)
    room.answer("a", now=0.1)
    room.send("b", 1000, now=0.11)
    room.token("a", now=0.2)
    assert gaps(room) == []
    assert room.clock.observed_step_ms == pytest.approx(100)


def test_nor_does_the_gap_in_which_prefill_ended(room):
    room.send("a", 1000)
    room.answer("a", now=0.1)
    room.send("b", 1000, now=0.11)
    room.answer("b", now=0.19)
    room.token("a", now=0.2)
    assert gaps(room) == []


def test_a_stream_that_pauses_is_no_slow_step(room):
    room.send("a", 1000)
    room.answer("a", now=0.1)
    room.token("a", now=30.0)
    assert gaps(room) == [(1, 1001, 4 * STEP.of(1, 1001) + 20)]


def test_the_mean_gap_moves_slowly(room):
    room.send("a", 1000)
    room.answer("a", now=0.1)
    room.token("a", now=0.13)
    for step in range(4):
        room.token("a", now=0.13 + 0.08 * (step + 1))
    assert room.clock.observed_step_ms == pytest.approx(30 + 0.02 * 50)
