"""What came of each simulated request, and the figures of a whole run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from loadgen.compare import mean, percentile
from loadgen.traces import Trace, hit_rate_dealt


@dataclass(slots=True)
class RequestOutcome:
    """Times in seconds. `ended_at` is None for a request whose answer broke off or never came."""

    sent_at: float
    prompt_tokens: int
    output_tokens: int
    first_token_at: float | None = None
    ended_at: float | None = None
    cached_tokens: int = 0
    num_attempts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Milliseconds; NaN where there is nothing to measure."""

    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One policy's run. `tpot_ms`: of each request the mean time from token to token.

    `hit_rate`: cached over prompt tokens; `ideal_hit_rate`: of one cache without limit that sees the requests
    in the trace's order. `imbalance`: busy time of the busiest worker over the mean. `num_failed` are counted
    as requests and in no other figure.
    """

    policy: str
    trace: str
    num_workers: int
    seed: int
    num_requests: int
    num_failed: int
    ttft_ms: Spread
    tpot_ms: Spread
    e2e_ms: Spread
    hit_rate: float
    ideal_hit_rate: float
    imbalance: float
    simulated_s: float
    wall_s: float

    def as_json(self) -> dict[str, Any]:
        """The documented fields; what was not measured is None."""
        fields = asdict(self)
        del fields["num_failed"]
        return {name: _without_nan(value) for name, value in fields.items()}


def _without_nan(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, dict):
        return {name: _without_nan(each) for name, each in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value


@dataclass(frozen=True, slots=True)
class Run:
    """Outcomes in the trace's order, busy seconds of each worker, and how much virtual time has passed."""

    outcomes: Sequence[RequestOutcome]
    busy_seconds: Sequence[float]
    simulated_seconds: float


def figures_of(
    run: Run, trace: Trace, *, policy: str, name: str, seed: int, wall_seconds: float, warm_up: float = 0.0
) -> Figures:
    """`warm_up`: share of the requests, the first ones, that no time and no hit rate is taken of: caches are
    still empty then."""
    skipped = int(len(run.outcomes) * warm_up)
    counted = [outcome for outcome in run.outcomes[skipped:] if outcome.ended_at is not None]
    prompt_tokens = sum(outcome.prompt_tokens for outcome in counted)
    busy = mean(run.busy_seconds)
    return Figures(
        policy=policy,
        trace=name,
        num_workers=len(run.busy_seconds),
        seed=seed,
        num_requests=len(run.outcomes),
        num_failed=sum(outcome.ended_at is None for outcome in run.outcomes),
        ttft_ms=_spread(counted, _ttft),
        tpot_ms=_spread(counted, _tpot),
        e2e_ms=_spread(counted, _e2e),
        hit_rate=_ratio(sum(outcome.cached_tokens for outcome in counted), prompt_tokens),
        ideal_hit_rate=hit_rate_dealt(trace.requests, 1, trace.block_tokens),
        imbalance=max(run.busy_seconds) / busy if busy else math.nan,
        simulated_s=run.simulated_seconds,
        wall_s=wall_seconds,
    )


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def _spread(outcomes: Sequence[RequestOutcome], measure: Callable[[RequestOutcome], float | None]) -> Spread:
    values = sorted(value * 1000 for value in map(measure, outcomes) if value is not None)
    return Spread(
        mean=mean(values),
        p50=percentile(values, 0.50),
        p90=percentile(values, 0.90),
        p99=percentile(values, 0.99),
    )


def _ttft(outcome: RequestOutcome) -> float | None:
    return None if outcome.first_token_at is None else outcome.first_token_at - outcome.sent_at


def _tpot(outcome: RequestOutcome) -> float | None:
    if outcome.first_token_at is None or outcome.ended_at is None or outcome.output_tokens < 2:
        return None
    return (outcome.ended_at - outcome.first_token_at) / (outcome.output_tokens - 1)


def _e2e(outcome: RequestOutcome) -> float | None:
    return None if outcome.ended_at is None else outcome.ended_at - outcome.sent_at
