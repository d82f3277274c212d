"""Shapes and factors against engines whose times are known; the priors are twice too slow for the first."""

import math
import random
from statistics import mean

import pytest

from policies.engine_time import PrefillTime, StepTime
from router.core.learning import Factor, Shape
from router.core.limits import PREFILL_PRIOR, SAMPLE_BASE_MS, SAMPLE_TOKEN_MS, STEP_PRIOR

PREFILL = PrefillTime(15.0, 0.05, 4.7e-7)
STEP = StepTime(15.0, 0.06, 4e-5)


def prompt_sample(rng, num_tokens, cached, speed=PREFILL, factor=1.0):
    """Regressors and milliseconds with 5 % noise."""
    x = (1.0, float(num_tokens - cached), float(num_tokens**2 - cached**2))
    return x, factor * speed.of(num_tokens, cached) * rng.lognormvariate(0, 0.05)


def weight(x):
    return 1 / (SAMPLE_BASE_MS + SAMPLE_TOKEN_MS * x[1])


def conversation(rng):
    """Lengths as in published conversation traces: most are short, some very long, a third is cached."""
    num_tokens = min(120_000, round(rng.lognormvariate(8.9, 0.9)))
    return num_tokens, num_tokens // 2 if rng.random() < 0.35 else 0


def learnt(shape, lengths, num, *, rng, speed=PREFILL):
    for _ in range(num):
        x, y = prompt_sample(rng, *lengths(rng), speed)
        shape.observe(x, y, weight(x) ** 2)
    return PrefillTime(*shape.coefficients)


@pytest.mark.parametrize("slower", [1, 3, 0.2])
def test_prompts_of_many_lengths_teach_what_prefill_takes_from_any_prior(slower):
    shape = Shape(tuple(slower * each for each in PREFILL_PRIOR))
    speed = learnt(shape, conversation, 2000, rng=random.Random(1))
    assert speed.token == pytest.approx(PREFILL.token, rel=0.3)
    for num_tokens, cached in ((500, 0), (8000, 0), (8000, 4000), (60_000, 0), (60_000, 30_000)):
        assert speed.of(num_tokens, cached) == pytest.approx(PREFILL.of(num_tokens, cached), rel=0.2)


def test_a_fast_engine_is_learnt_from_a_prior_seven_times_too_slow():
    fast = PrefillTime(16.5, 0.01518, 4.21e-7)
    speed = learnt(Shape(PREFILL_PRIOR), conversation, 4000, rng=random.Random(2), speed=fast)
    for num_tokens in (4000, 8000, 60_000):
        assert speed.of(num_tokens, 0) == pytest.approx(fast.of(num_tokens, 0), rel=0.25)


def test_ten_thousand_prompts_of_one_length_leave_the_slope_where_it_can_be():
    """Nothing tells the coefficients apart: the prior's shape must, at the speed that was seen."""
    speed = learnt(Shape(PREFILL_PRIOR), lambda _rng: (8192, 0), 10_000, rng=random.Random(3))
    assert 0.03 < speed.token < 0.1
    assert speed.of(8192, 0) == pytest.approx(PREFILL.of(8192, 0), rel=0.02)
    assert all(map(math.isfinite, speed))


def test_the_first_samples_set_the_speed():
    rng, shape = random.Random(4), Shape(PREFILL_PRIOR)
    speed = learnt(shape, conversation, 10, rng=rng)
    assert speed.of(8192, 0) == pytest.approx(PREFILL.of(8192, 0), rel=0.35)


def test_no_coefficient_is_below_zero():
    rng, shape = random.Random(5), Shape(PREFILL_PRIOR)
    for _ in range(300):  # the longer the prompt, the less it takes
        num_tokens = rng.randrange(100, 20_000)
        shape.observe((1.0, float(num_tokens), float(num_tokens**2)), 5000 / num_tokens, 1.0)
        assert min(shape.coefficients) >= 0


@pytest.mark.parametrize("x", [(0.0, 0.0, 0.0), (1.0, 0.0, 0.0)])
def test_samples_that_say_nothing_leave_a_sound_shape(x):
    shape = Shape(PREFILL_PRIOR)
    for _ in range(100):
        shape.observe(x, 0.0, 1.0)
    assert all(math.isfinite(each) and each >= 0 for each in shape.coefficients)


def test_decode_steps_teach_what_a_stream_and_a_token_take():
    rng, shape = random.Random(6), Shape(STEP_PRIOR)
    for _ in range(3000):
        streams = rng.randrange(1, 60)
        tokens = round(streams * 8000 * rng.uniform(0.5, 1.5))
        y = STEP.of(streams, tokens) * rng.lognormvariate(0, 0.05)
        shape.observe((1.0, float(streams), float(tokens)), y, 1.0)
    step = StepTime(*shape.coefficients)
    for streams in (1, 10, 50):
        assert step.of(streams, 8000 * streams) == pytest.approx(STEP.of(streams, 8000 * streams), rel=0.05)


# One worker


def taught(factor, *, num=200, times=1.0, now=0.0, seconds=0.5):
    rng = random.Random(9)
    for number in range(num):
        x, y = prompt_sample(rng, *conversation(rng), factor=times)
        factor.observe(x, y, weight(x), now + number * seconds)
    return now + num * seconds


def test_a_worker_is_as_fast_as_its_fleet_until_it_shows():
    assert Factor().value(PREFILL, now=1e6) == 1


@pytest.mark.parametrize(
    ("times", "lowest", "highest"), [(2.0, 1.3, 2.0), (0.5, 0.5, 0.8), (1.0, 0.95, 1.05)]
)
def test_a_worker_s_own_speed_shows_drawn_towards_its_fleet_s(times, lowest, highest):
    factor = Factor()
    now = taught(factor, times=times)
    assert lowest < factor.value(PREFILL, now) < highest


def test_a_worker_that_gets_nothing_is_believed_to_be_as_fast_as_others_again():
    """Else one that was slow for a while would never be asked again."""
    factor = Factor()
    now = taught(factor, times=3.0)
    slow = factor.value(PREFILL, now)
    values = [factor.value(PREFILL, now + seconds) for seconds in (0, 30, 60, 120, 300)]
    assert slow > 1.4
    assert values == sorted(values, reverse=True)
    assert values[-1] < 1.05


def test_when_the_fleet_s_shape_becomes_what_a_worker_showed_its_factor_becomes_one():
    """Sums of what was asked are kept, not of what was predicted."""
    factor = Factor()
    now = taught(factor, times=2.0)
    assert factor.value(PREFILL, now) > 1.5
    assert factor.value(tuple(2 * each for each in PREFILL), now) == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize(("times", "bound"), [(1e6, 8.0), (0.0, 0.125)])
def test_a_broken_worker_stays_within_bounds(times, bound):
    factor = Factor()
    values = set()
    for _ in range(3):
        now = taught(factor, num=3000, times=times, seconds=0.001)
        values.add(factor.value(tuple(40 * each for each in PREFILL) if times == 0 else PREFILL, now))
    assert values == {bound}


def test_equal_workers_have_equal_factors():
    shape, factors, rng = Shape(PREFILL_PRIOR), [Factor() for _ in range(8)], random.Random(10)
    for number in range(10_000):
        x, y = prompt_sample(rng, 8192, 0)
        shape.observe(x, y, weight(x) ** 2)
        factors[number % 8].observe(x, y, weight(x), number * 0.1)
    values = [factor.value(shape.coefficients, 1000.0) for factor in factors]
    assert all(0.9 < value < 1.1 for value in values)
    assert mean(values) == pytest.approx(1, abs=0.02)
