"""How rounds become a figure: medians, and how far they can be trusted."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

NUM_RESAMPLES = 2_000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A figure and the bootstrap interval around it."""

    value: float
    low: float
    high: float


def ratio_of_medians(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """median(ours) / median(theirs) over rounds that were run in turn.

    Whole rounds are drawn again, so that what disturbed both halves of a round stays together.
    """
    rng = random.Random(0)
    rounds = range(len(ours))
    ratios = []
    for _ in range(NUM_RESAMPLES):
        drawn = rng.choices(rounds, k=len(rounds))
        ratios.append(median(ours[i] for i in drawn) / median(theirs[i] for i in drawn))
    return Interval(median(ours) / median(theirs), *_middle(ratios))


def difference_of_medians(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """median(ours) - median(theirs), drawn as for the ratio: for what may be nought or less."""
    rng = random.Random(0)
    rounds = range(len(ours))
    differences = []
    for _ in range(NUM_RESAMPLES):
        drawn = rng.choices(rounds, k=len(rounds))
        differences.append(median(ours[i] for i in drawn) - median(theirs[i] for i in drawn))
    return Interval(median(ours) - median(theirs), *_middle(differences))


def median_interval(values: Sequence[float]) -> Interval:
    """The median of some rounds."""
    rng = random.Random(0)
    medians = [median(rng.choices(values, k=len(values))) for _ in range(NUM_RESAMPLES)]
    return Interval(median(values), *_middle(medians))


def _middle(values: list[float]) -> tuple[float, float]:
    """The bounds between which CONFIDENCE of the values lie."""
    values.sort()
    cut = int(len(values) * (1 - CONFIDENCE) / 2)
    return values[cut], values[-1 - cut]
