"""Step times of the profiles, at the figures that they stand for."""

from __future__ import annotations

import pytest

from loadgen.engine_profiles import PROFILES


def test_settings_have_room_for_the_capacity():
    settings = PROFILES["70b"].settings(512)
    assert settings.capacity_tokens == 500_000 // 512 * 512
    assert settings.context_limit < settings.capacity_tokens
    assert PROFILES["70b"].settings(512, 200_000).capacity_tokens == 199_680


def test_70b():
    times = PROFILES["70b"].step_time
    assert times.step_constant + times.prefill_ms(8192, 8192**2) == pytest.approx(456.1, abs=0.1)
    assert times.step_constant + times.decode_ms(20, 160_000) == pytest.approx(22.6, abs=0.1)


def test_published_curves():
    for name, tokens in (("dynamo", 1_048_576), ("flat-decode", 16_384)):
        times = PROFILES[name].step_time
        assert times.prefill_ms(8192, 8192**2) == pytest.approx(169, rel=0.01)
        assert times.decode_ms(10, tokens) == pytest.approx(34.0, rel=0.01)
    flat = PROFILES["flat-decode"].step_time
    assert flat.decode_ms(10, 500_000) == pytest.approx(flat.decode_ms(10, 16_384))
