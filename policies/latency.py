"""`latency`: the least time lost, in milliseconds: the request's own until its first token, and others'.

What an engine's work takes is learnt by the core from what each worker does (`EngineTimes`); here it is only
added up. There is no scale between units, and no margin: as long as a worker's hit saves more time than waits
there, it wins.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from policies.base import BasePolicy, Needs
from policies.costs import break_tie, require_finite
from policies.engine_time import num_chunks
from policies.parameters import Parameter, table_of
from policies.types import Candidates, Choice, Role, RoutingRequest

GOALS = {"first-token": 0.03, "balanced": 0.1, "throughput": 0.3}
"""How much a millisecond of all other streams weighs against one of the own first token."""

TIE_MS = 1.0
"""Costs that differ by less are equal: no prediction is as good as that."""

TERMS = ("wait", "memory", "prefill", "steps", "later", "streams")
"""What a cost is the sum of. The first four make up the time to the first token: until the prefill that waits
there is done, until streams have ended and left room, the prompt itself, and decode steps of others in
between. `later`: what those lose who come meanwhile. `streams`: what the worker's streams lose, and the
request's own, weighed by the goal."""

HANDED_OVER = "handed_over"
"""One term more among workers whose prompts others may compute: the time to the first token then."""

_SixTerms = tuple[float, float, float, float, float, float]


class Latency(BasePolicy):
    """For each row, with `n` the prompt's tokens, `hit` those that are cached (at most n - 1), new = n - hit:

    prefill = base + token * new + pair * (n * n - hit * hit)
    step(m, k) = base + stream * m + token * k           one decode step of m streams with k tokens
    memory  = max(0, new - free tokens) * mean output * observed step / resident tokens
    steps   = (ceil(new / batched) + 1/2) * step(decoding, their tokens)      0 where nothing decodes
    later   = arrivals * prefill * (wait + memory + prefill / 2)
    streams = weight * (active * prefill + mean output * step(active + 1, resident + n + mean output / 2))
    cost    = wait + memory + prefill + steps + later + streams

    Where a prefill worker would compute the prompt, the time to the first token is what the core foretells of
    that way, and no stream is stalled:

    cost    = memory + weight * mean output * step(active + 1, resident + n + mean output / 2) + handed over

    Prefill workers have no streams: there it is wait + prefill + later.
    """

    name = "latency"
    needs = Needs(overlap=True, loads=True, times=True)
    PARAMETERS = table_of(
        Parameter(
            "goal", "balanced", 0.0, None,
            "What counts more: the first token of the new request, or the speed of all streams (throughput).",
            words=tuple(GOALS),
        ),
    )  # fmt: skip

    def __init__(self, parameters: Mapping[str, object] | None = None) -> None:
        super().__init__(parameters)
        self._weight = GOALS[str(self.parameters["goal"])]

    def choose(self, request: RoutingRequest, candidates: Candidates, rng: random.Random) -> Choice:
        hits = self._hits(candidates)
        rows = self._rows(candidates, hits)
        assert candidates.times is not None, "needs.times asks for them"
        if candidates.times.handed_over_ms is not None:
            return self._choose_among_pairs(candidates, hits, rows, candidates.times.handed_over_ms, rng)
        costs = [a + b + c + d + e + f for a, b, c, d, e, f in rows]
        return self._conclude(candidates, hits, costs, TERMS, rows, rng)

    def _choose_among_pairs(
        self,
        candidates: Candidates,
        hits: list[float],
        rows: Sequence[_SixTerms],
        handed_over_ms: Sequence[float | None],
        rng: random.Random,
    ) -> Choice:
        """Some rows have the prompt computed by a prefill worker."""
        pairs = [
            (*terms, 0.0) if ms is None else self._handed_over(terms, active, ms)
            for terms, active, ms in zip(rows, candidates.num_active_requests, handed_over_ms, strict=True)
        ]
        return self._conclude(candidates, hits, list(map(sum, pairs)), (*TERMS, HANDED_OVER), pairs, rng)

    def _handed_over(self, terms: _SixTerms, active: int, ms: float) -> tuple[float, ...]:
        _, memory, prefill, _, _, streams = terms
        return 0.0, memory, 0.0, 0.0, 0.0, streams - self._weight * active * prefill, ms

    def _conclude(
        self,
        candidates: Candidates,
        hits: list[float],
        costs: list[float],
        names: Sequence[str],
        rows: Sequence[Sequence[float]],
        rng: random.Random,
    ) -> Choice:
        require_finite(costs)
        row = _least(candidates, hits, costs, rng)
        first_token = sum(rows[row][:4]) + sum(rows[row][len(TERMS) :])
        return Choice(row, costs, f"least time lost, first token in {first_token:.0f} ms", names, rows)

    def _hits(self, candidates: Candidates) -> list[float]:
        """Tokens of the prompt that each row need not compute; the last one is always computed."""
        blocks = candidates.device_overlap
        if any(candidates.host_overlap) or any(candidates.disk_overlap):
            host, disk = self.tier_weights
            slower = zip(candidates.host_overlap, candidates.disk_overlap, strict=True)
            blocks = [a + host * b + disk * c for a, (b, c) in zip(blocks, slower, strict=True)]
        tokens, most = candidates.block_tokens, max(0.0, candidates.prompt_tokens - 1)
        return [hit if (hit := tokens * held) < most else most for held in blocks]

    def _rows(self, candidates: Candidates, hits: list[float]) -> list[_SixTerms]:
        """The terms of each row. `PrefillTime.of` and `StepTime.of` are written out: a call for each would
        take as long as all the rest."""
        times, n = candidates.times, candidates.prompt_tokens
        assert times is not None, "needs.times asks for them"
        decodes = candidates.workers[0].role is not Role.PREFILL  # all of a pool do, or none
        weight = self._weight if decodes else 0.0
        batched, output, arrivals = times.batched_tokens, times.mean_output_tokens, times.arrivals_per_ms
        grown = n + output / 2
        rows: list[_SixTerms] = []
        columns = zip(
            hits, times.prefill, times.step, times.wait_ms, candidates.num_active_requests,
            times.num_decoding, times.decoding_tokens, times.resident_tokens, times.free_tokens,
            times.observed_step_ms, strict=True,
        )  # fmt: skip
        for hit, prefill_time, step_time, wait, active, decoding, tokens, resident, free, seen in columns:
            base, token, pair = prefill_time
            step, stream, kept = step_time
            new = n - hit
            prefill = base + new * (token + pair * (n + hit))
            memory = steps = 0.0
            their_step = step + stream * decoding + kept * tokens
            if decoding:
                steps = (num_chunks(new, batched) + 0.5) * their_step
            if new > free and resident and decodes:
                memory = (new - free) * output * max(seen, their_step) / resident
            later = arrivals * prefill * (wait + memory + prefill / 2)
            own_step = step + stream * (active + 1) + kept * (resident + grown)
            streams = weight * (active * prefill + output * own_step)
            rows.append((wait, memory, prefill, steps, later, streams))
        return rows


def _least(candidates: Candidates, hits: Sequence[float], costs: Sequence[float], rng: random.Random) -> int:
    """Of equal rows the deepest hit, then the fewest resident tokens, then as everywhere."""
    bound = min(costs) + TIE_MS
    equal = [row for row, cost in enumerate(costs) if cost <= bound]
    if len(equal) > 1:
        assert candidates.times is not None
        resident = candidates.times.resident_tokens
        best = min((-hits[row], resident[row]) for row in equal)
        equal = [row for row in equal if (-hits[row], resident[row]) == best]
    return equal[0] if len(equal) == 1 else break_tie(candidates, equal, rng)[0]
