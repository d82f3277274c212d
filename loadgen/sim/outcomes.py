"""What came of each simulated request, and the figures of a whole run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from loadgen.compare import mean, percentile
from loadgen.sim.settings import PoolSettings
from loadgen.traces import Trace, hit_rate_dealt
from router.core.disagg import Reason

WITHOUT_CHOICE = frozenset({Reason.NO_PREFILL_WORKER, Reason.RETRIED, Reason.PREFILL_FAILED})
"""Local, because there was no other way."""


@dataclass(slots=True, kw_only=True)
class PairOutcome:
    """Of a request whose worker belongs to a pool: the verdict, and what came of it.

    `other_seconds`: what the way that was not taken would have needed from `decided_at` to the first token,
    by the engines' formulas; None where there was no other. `stall_seconds`: what the decode worker's streams
    lose together when it computes the prompt. `is_handed_over`: the answer rests on KV that was transferred,
    so many tokens of it.
    """

    decided_at: float
    is_remote: bool
    reason: str
    other_seconds: float | None = None
    stall_seconds: float = 0.0
    is_handed_over: bool = False
    transferred_tokens: int = 0


@dataclass(slots=True)
class RequestOutcome:
    """Times in seconds. `ended_at` is None for a request whose answer broke off or never came.
    `cached_tokens`: of the worker that computed the prompt."""

    sent_at: float
    prompt_tokens: int
    output_tokens: int
    first_token_at: float | None = None
    ended_at: float | None = None
    cached_tokens: int = 0
    num_attempts: int = 0
    pair: PairOutcome | None = None
    """None where a whole worker answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Milliseconds; NaN where there is nothing to measure."""

    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFigures:
    """Of requests that were answered and measured. `hand_over_share`: of all of them, answered from KV that
    was transferred. `remote`, `local`: how many by the reason of the verdict. `num_fallbacks`: remote by
    verdict, computed by the decode worker all the same.

    `gained_share`: of the hand-overs, those whose first token came sooner than the decode worker would have
    had it; `lost_share`: of the local ones that had a choice, those that a hand-over would have served
    sooner; `gain_ms`, `loss_ms`: by how much on average, negative where it is the other way round. The `net`
    ones add what the decode worker's streams lose together to the time of a local prompt.
    """

    mode: str
    num_prefill: int
    num_decode: int
    hand_over_share: float
    transferred_tokens: int
    remote: dict[str, int]
    local: dict[str, int]
    num_fallbacks: int
    gained_share: float
    gain_ms: float
    net_gained_share: float
    net_gain_ms: float
    lost_share: float
    loss_ms: float
    net_lost_share: float
    net_loss_ms: float


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
    pools: PoolFigures | None = None
    """None for a fleet of whole workers alone."""

    def as_json(self) -> dict[str, Any]:
        """The documented fields; what was not measured is None."""
        fields = asdict(self)
        del fields["num_failed"]
        if self.pools is None:
            del fields["pools"]
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
    run: Run,
    trace: Trace,
    *,
    policy: str,
    name: str,
    seed: int,
    wall_seconds: float,
    warm_up: float = 0.0,
    pools: PoolSettings | None = None,
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
        pools=_pool_figures(counted, pools) if pools else None,
    )


def _pool_figures(counted: Sequence[RequestOutcome], pools: PoolSettings) -> PoolFigures:
    pairs = [(outcome, outcome.pair) for outcome in counted if outcome.pair]
    handed_over = [pair for _outcome, pair in pairs if pair.is_handed_over]
    remote = [
        (_saved_ms(outcome), pair.stall_seconds * 1000) for outcome, pair in pairs if pair.is_handed_over
    ]
    gains = [saved for saved, _stall in remote if saved is not None]
    net_gains = [saved + stall for saved, stall in remote if saved is not None]
    local = [
        (_saved_ms(outcome), pair.stall_seconds * 1000)
        for outcome, pair in pairs
        if not pair.is_remote and pair.reason not in WITHOUT_CHOICE
    ]
    losses = [-saved for saved, _stall in local if saved is not None]
    net_losses = [stall - saved for saved, stall in local if saved is not None]
    return PoolFigures(
        mode=pools.rules.mode.value,
        num_prefill=pools.num_prefill,
        num_decode=pools.num_decode,
        hand_over_share=_ratio(len(handed_over), len(counted)),
        transferred_tokens=sum(pair.transferred_tokens for pair in handed_over),
        remote=_by_reason(pair for _outcome, pair in pairs if pair.is_remote),
        local=_by_reason(pair for _outcome, pair in pairs if not pair.is_remote),
        num_fallbacks=sum(pair.is_remote and not pair.is_handed_over for _outcome, pair in pairs),
        gained_share=_share_above_zero(gains),
        gain_ms=mean(gains),
        net_gained_share=_share_above_zero(net_gains),
        net_gain_ms=mean(net_gains),
        lost_share=_share_above_zero(losses),
        loss_ms=mean(losses),
        net_lost_share=_share_above_zero(net_losses),
        net_loss_ms=mean(net_losses),
    )


def _by_reason(pairs: Iterable[PairOutcome]) -> dict[str, int]:
    return dict(sorted(Counter(str(pair.reason) for pair in pairs).items()))


def _saved_ms(outcome: RequestOutcome) -> float | None:
    """How much sooner the first token came than by the other way, where there was one."""
    pair = outcome.pair
    if pair is None or pair.other_seconds is None or outcome.first_token_at is None:
        return None
    return (pair.other_seconds - (outcome.first_token_at - pair.decided_at)) * 1000


def _share_above_zero(values: Sequence[float]) -> float:
    return _ratio(sum(value > 0 for value in values), len(values))


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
