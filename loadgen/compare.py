"""From request results to the figures of a policy, with intervals where they are cheap. Pure arithmetic."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadgen.results import RequestResult

RESAMPLES = 400
"""Bootstrap rounds: the ends of a 95 % interval then rest on ten samples each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One run; times in milliseconds, NaN where nothing was measured."""

    name: str
    num_requests: int
    num_errors: int
    ttft_mean: float
    ttft_mean_interval: tuple[float, float]
    """95 % by bootstrap over requests; runs of other arrivals are not in it."""
    ttft_p50: float
    ttft_p99: float
    itl_p50: float
    itl_p99: float
    hit_rate: float
    """Cached over prompt tokens, as the workers themselves reported them; NaN where they report none."""
    request_balance: float
    """Requests of the busiest worker over the mean; 1 is even."""
    prefill_balance: float
    """The same of tokens that had to be computed."""
    late_max: float
    """How late the load generator itself was, at worst."""


def summarize(name: str, results: Sequence[RequestResult], num_workers: int, rng: random.Random) -> Summary:
    """Errors count as requests, but not in the times."""
    good = [result for result in results if result.error is None]
    ttfts = [result.ttft * 1000 for result in good if result.ttft is not None]
    gaps = sorted(gap * 1000 for result in good for gap in result.token_gaps)
    counted = _counted(good)
    prompt_tokens = sum(map(_prompt_tokens, counted))
    return Summary(
        name=name,
        num_requests=len(results),
        num_errors=len(results) - len(good),
        ttft_mean=mean(ttfts),
        ttft_mean_interval=bootstrap_interval(ttfts, mean, rng),
        ttft_p50=percentile(sorted(ttfts), 0.50),
        ttft_p99=percentile(sorted(ttfts), 0.99),
        itl_p50=percentile(gaps, 0.50),
        itl_p99=percentile(gaps, 0.99),
        hit_rate=sum(map(_cached_tokens, counted)) / prompt_tokens if prompt_tokens else math.nan,
        request_balance=balance(good, num_workers, lambda _result: 1),
        prefill_balance=balance(
            counted, num_workers, lambda result: _prompt_tokens(result) - _cached_tokens(result)
        ),
        late_max=max((result.late * 1000 for result in results), default=math.nan),
    )


def _counted(results: Sequence[RequestResult]) -> list[RequestResult]:
    """Those whose prompt and cached tokens are known. Engines that report cached tokens leave the number out
    when it is 0, so it is known of all as soon as one told it."""
    is_reported = any(result.cached_tokens is not None for result in results)
    return [result for result in results if is_reported and result.prompt_tokens is not None]


def _prompt_tokens(result: RequestResult) -> int:
    return result.prompt_tokens or 0


def _cached_tokens(result: RequestResult) -> int:
    return result.cached_tokens or 0


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value at index floor(share * n) of an ordered sequence."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else math.nan


def bootstrap_interval(
    values: Sequence[float], statistic: Callable[[Sequence[float]], float], rng: random.Random
) -> tuple[float, float]:
    """95 % interval of a statistic of independent values, by resampling them."""
    if not values:
        return math.nan, math.nan
    estimates = sorted(statistic(rng.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return percentile(estimates, 0.025), percentile(estimates, 0.975)


def balance(
    results: Sequence[RequestResult], num_workers: int, weight: Callable[[RequestResult], float]
) -> float:
    """Largest sum of `weight` on one worker over the mean; NaN when the results name no worker."""
    totals: Counter[str] = Counter()
    for result in results:
        totals[result.worker] += int(weight(result))
    total = totals.total()
    if not total or "" in totals:
        return math.nan
    return max(totals.values()) * num_workers / total
