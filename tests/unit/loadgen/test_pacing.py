"""The pace of a demo: the rate that the machine carries, engines just fast enough."""

from __future__ import annotations

import pytest

from loadgen.pacing import REQUESTS_PER_SECOND, UTILISATION, pace_for
from loadgen.step_time import prompt_prefill_ms
from loadgen.traces import TraceRequest


def test_pace_gives_the_rate_and_the_utilisation():
    requests = [TraceRequest(float(i), 8192, 10, list(range(16))) for i in range(101)]
    pace = pace_for(requests, 4)
    duration = 100 / pace.rate_scale
    assert 101 / duration == pytest.approx(REQUESTS_PER_SECOND)
    work = 101 * prompt_prefill_ms(8192, 8192) / 1000 / pace.speedup
    assert work / (4 * duration) == pytest.approx(UTILISATION)


def test_requests_that_all_come_at_once_have_a_pace_too():
    pace = pace_for([TraceRequest(0.0, 100, 1, [0])] * 3, 2)
    assert pace.rate_scale == 1.0
    assert pace.speedup > 0
