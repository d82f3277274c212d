"""Arithmetic that policies share: the cheapest row, ties, and sampling by temperature."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from policies.types import Candidates, Choice


def cheapest(candidates: Candidates, costs: Sequence[float], rng: random.Random) -> Choice:
    """The row of the lowest cost; ties go as in `break_tie`. Raises ValueError when a cost is not finite."""
    lowest = min(costs)
    require_finite(costs)
    rows = [row for row, cost in enumerate(costs) if cost == lowest]
    if len(rows) == 1:
        return Choice(rows[0], costs, "lowest cost" if len(costs) > 1 else "only candidate")
    row, reason = break_tie(candidates, rows, rng)
    return Choice(row, costs, f"lowest cost, {reason}")


def break_tie(candidates: Candidates, rows: Sequence[int], rng: random.Random) -> tuple[int, str]:
    """One of `rows` and why: served this prefix last, else the fewest blocks held, else chance.

    The first rule keeps a conversation where it is, the second fills an idle fleet evenly.
    """
    last = candidates.served_last_row
    if last is not None and last in rows:
        return last, "tie: served this prefix last"
    held = candidates.num_held_blocks
    fewest = min(held[row] for row in rows)
    rows = [row for row in rows if held[row] == fewest]
    if len(rows) == 1:
        return rows[0], "tie: fewest blocks held"
    return rng.choice(rows), "tie: at random"


def sample_by_temperature(costs: Sequence[float], temperature: float, rng: random.Random) -> int:
    """A row drawn with probability proportional to exp(-cost / (range of costs * temperature)).

    Dividing by the range makes the draw independent of the scale of the costs: at temperature 1 the cheapest
    row is e times as likely as the dearest, whatever lies between them. Equal costs: uniform.
    `temperature` is above 0.
    """
    require_finite(costs)
    lowest = min(costs)
    spread = (max(costs) - lowest) * temperature
    if spread == 0:
        return rng.randrange(len(costs))
    # Relative to the lowest cost every exponent is at most 0: nothing overflows, and one weight is 1.
    weights = [math.exp((lowest - cost) / spread) for cost in costs]
    return rng.choices(range(len(costs)), weights)[0]


def require_finite(costs: Sequence[float]) -> None:
    """Raises ValueError: a cost that is NaN or infinite would make the choice arbitrary without a sign."""
    if not math.isfinite(sum(costs)):
        raise ValueError(f"a cost is not finite: {list(costs)}")
