"""The curves against the values that were published with them, and runs of steps against single ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.step_time import PUBLISHED, StepTime, prompt_prefill_ms, published_curves


def prefill_ms(*chunks):
    """Each chunk is (tokens before, tokens after)."""
    return PUBLISHED.prefill_ms(
        sum(after - before for before, after in chunks),
        sum(after * after - before * before for before, after in chunks),
    )


def decode_ms(load):
    return PUBLISHED.decode_ms(1, load)


@pytest.mark.parametrize(("tokens", "milliseconds"), [(1000, 32.1), (8192, 169), (32_768, 966)])
def test_prefill_as_published(tokens, milliseconds):
    assert prefill_ms((0, tokens)) == pytest.approx(milliseconds, rel=0.01)


@pytest.mark.parametrize(("load", "milliseconds"), [(0.0, 5.7), (0.25, 17.6), (0.5, 26.3), (1.0, 34.0)])
def test_decode_as_published(load, milliseconds):
    assert decode_ms(load) == pytest.approx(milliseconds, rel=0.01)


def test_decode_never_falls_beyond_the_fitted_range():
    loads = [i / 10 for i in range(40)]
    times = [decode_ms(load) for load in loads]
    assert times == sorted(times)
    assert decode_ms(3.0) - decode_ms(2.0) == pytest.approx(decode_ms(2.0) - decode_ms(1.0))


def test_a_later_chunk_pays_for_what_is_there():
    assert prefill_ms((8192, 9192)) > prefill_ms((0, 1000))
    whole, constant = prefill_ms((0, 2000)), prefill_ms()
    assert prefill_ms((0, 1000)) + prefill_ms((1000, 2000)) - constant == pytest.approx(whole)


def test_prompt_in_steps():
    assert prompt_prefill_ms(10_000, 8192) == pytest.approx(
        prefill_ms((0, 8192)) + prefill_ms((8192, 10_000))
    )
    assert prompt_prefill_ms(10_000, 8192, cached_tokens=9984) == pytest.approx(prefill_ms((9984, 10_000)))


CURVES = [
    published_curves(5000),
    StepTime(
        prefill_linear=0.05,
        prefill_quadratic=0.0,
        decode_constant=3.0,
        decode_sequence=0.06,
        decode_linear=4e-5,
    ),
]


@pytest.mark.parametrize("curve", CURVES)
@given(sequences=st.integers(1, 300), tokens=st.integers(0, 20_000), steps=st.integers(1, 400))
def test_a_run_of_steps_is_the_sum_of_single_ones(curve, sequences, tokens, steps):
    single = sum(curve.decode_ms(sequences, tokens + sequences * i) for i in range(steps))
    assert curve.decode_ms(sequences, tokens, steps) == pytest.approx(single, rel=1e-9)
