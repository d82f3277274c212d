"""How an engine's times are learnt: the shape of a fleet's, and how much slower one worker is.

Two levels that never see each other's result. A shape and factors that were fitted together would chase each
other: only their product shows in what is measured. What a sample is, is decided in `engine_clock`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from router.core.limits import (
    FACTOR_MEMORY,
    FACTOR_PRIOR_WEIGHT,
    FACTOR_RANGE,
    FACTOR_SECONDS,
    RIDGE_FLOOR,
    RIDGE_START,
    SHAPE_MEMORY,
    SHAPE_SOLVED_ALWAYS,
    SHAPE_SOLVED_EACH,
)

Vector = tuple[float, float, float]


class Shape:
    """Three coefficients, none below 0, of `time = coefficients . x`, from the samples of a whole fleet.

    Least squares on fading sums, with a ridge that fades as samples come and pulls towards the prior's shape
    at whatever speed fits best: requests are alike, so that samples alone do not tell the coefficients apart,
    and a wrong slope confirms itself (hits look cheap to miss, so they are missed).
    """

    def __init__(self, prior: Vector, memory: float = SHAPE_MEMORY) -> None:
        """`memory`: what a sample still weighs after one more."""
        self._prior = prior
        self._memory = memory
        self._gram = [[0.0] * 3 for _ in range(3)]  # of the regressors in units of the prior
        self._moment = [0.0] * 3
        self._num_samples = 0
        self.coefficients: Vector = prior

    def observe(self, x: Vector, y: float, weight: float) -> None:
        """`x`: what the coefficients are multiplied with; `y` in milliseconds."""
        z = [p * value for p, value in zip(self._prior, x, strict=True)]
        for i, row in enumerate(self._gram):
            for j in range(3):
                row[j] = row[j] * self._memory + weight * z[i] * z[j]
            self._moment[i] = self._moment[i] * self._memory + weight * z[i] * y
        self._num_samples += 1
        if self._num_samples <= SHAPE_SOLVED_ALWAYS or self._num_samples % SHAPE_SOLVED_EACH == 0:
            self._solve()

    def fade(self, left: float) -> None:
        """What was observed weighs so much of what it did."""
        self._gram = [[left * value for value in row] for row in self._gram]
        self._moment = [left * value for value in self._moment]

    def _solve(self) -> None:
        total = sum(map(sum, self._gram))
        if total <= 0:
            return
        common = sum(self._moment) / total  # the factor by which the prior fits best
        trace = sum(self._gram[i][i] for i in range(3))
        ridge = (RIDGE_FLOOR + RIDGE_START / (self._num_samples + 1)) * trace / 3
        units = _solve_without_negative(self._gram, self._moment, ridge, max(0.0, common))
        first, second, third = (p * unit for p, unit in zip(self._prior, units, strict=True))
        self.coefficients = first, second, third


def _solve_without_negative(
    gram: Sequence[Sequence[float]], moment: Sequence[float], ridge: float, target: float
) -> list[float]:
    """(gram + ridge) u = moment + ridge * target; what would be negative is 0, and the rest solved again."""
    kept = [0, 1, 2]
    while True:
        matrix = [[gram[i][j] + (ridge if i == j else 0.0) for j in kept] for i in kept]
        solution = _solve_linear(matrix, [moment[i] + ridge * target for i in kept])
        lowest = min(range(len(kept)), key=solution.__getitem__)
        if solution[lowest] >= 0 or len(kept) == 1:
            break
        del kept[lowest]
    units = [0.0] * 3
    for i, value in zip(kept, solution, strict=True):
        units[i] = max(0.0, value)
    return units


def _solve_linear(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gaussian elimination. The matrix is symmetric and positive definite, so no pivot is 0."""
    size = len(right)
    for i in range(size):
        for j in range(i + 1, size):
            share = matrix[j][i] / matrix[i][i]
            right[j] -= share * right[i]
            for k in range(i, size):
                matrix[j][k] -= share * matrix[i][k]
    for i in reversed(range(size)):
        known = sum(matrix[i][k] * right[k] for k in range(i + 1, size))
        right[i] = (right[i] - known) / matrix[i][i]
    return right


class Factor:
    """How many times the fleet's shape one worker takes; 1 until it shows, and again when it shows nothing.

    It relaxes to 1 within a minute or so: a worker that was learnt as slow gets nothing, so nothing else
    would ever show that it has recovered. What is kept are sums of `x` and not of predictions, so that a
    change of the shape disturbs no factor.
    """

    def __init__(self) -> None:
        self._x = [0.0, 0.0, 0.0]
        self._y = 0.0
        self._seen_at = 0.0

    def observe(self, x: Vector, y: float, weight: float, now: float) -> None:
        """`weight`: such that a sample counts for about 1."""
        kept = FACTOR_MEMORY * self._left(now)
        self._x = [kept * mine + weight * value for mine, value in zip(self._x, x, strict=True)]
        self._y = kept * self._y + weight * y
        self._seen_at = now

    def value(self, coefficients: Vector, now: float) -> float:
        left, (base, each, more), (x0, x1, x2) = self._left(now), coefficients, self._x
        expected = left * (base * x0 + each * x1 + more * x2)
        lowest, highest = FACTOR_RANGE
        factor = (left * self._y + FACTOR_PRIOR_WEIGHT) / (expected + FACTOR_PRIOR_WEIGHT)
        return min(highest, max(lowest, factor))

    def _left(self, now: float) -> float:
        return math.exp((self._seen_at - now) / FACTOR_SECONDS)
