"""How long one step of the modelled engine takes.

`PUBLISHED` are the two polynomials of the mocker that NVIDIA Dynamo published (v1.0, built-in timing model):

    prefill(n) = 4.209989e-7 n^2 + 1.518344e-2 n + 16.50142 ms     n = tokens computed
    decode(p)  = -25.74 p^2 + 54.01 p + 5.74 ms                    p = active tokens / capacity

A chunk that takes a sequence from c to n computed tokens pays the difference of the squares: attention looks
at what is already there, cached or computed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Milliseconds of a step, by what is in it. A step of prefill and decoding pays for both.

    `full_tokens` is where the decode parabola ends: what more tokens cost is `slope_beyond`.
    """

    step_constant: float = 0.0
    """Paid by every step."""
    prefill_constant: float = 0.0
    prefill_linear: float
    """Per prompt token that is computed."""
    prefill_quadratic: float
    """Per difference of squares, see above."""
    decode_constant: float = 0.0
    decode_sequence: float = 0.0
    """Per sequence that gets a token."""
    decode_linear: float = 0.0
    """Per token that is looked at."""
    decode_quadratic: float = 0.0
    full_tokens: float = float("inf")
    slope_beyond: float = 0.0

    def prefill_ms(self, num_tokens: int, num_squares: int) -> float:
        """For `num_tokens` prompt tokens, whose differences of squares add up to `num_squares`."""
        return self.prefill_constant + self.prefill_linear * num_tokens + self.prefill_quadratic * num_squares

    def decode_ms(self, num_sequences: int, active_tokens: int, num_steps: int = 1) -> float:
        """For one token of every sequence, or for that many tokens of each: step by step `active_tokens`
        grows by one for each sequence."""
        inside = num_steps
        if active_tokens + num_sequences * (num_steps - 1) > self.full_tokens:
            room = self.full_tokens - active_tokens
            inside = min(num_steps, int(room // num_sequences) + 1) if room >= 0 else 0
        each = self.decode_constant + self.decode_sequence * num_sequences
        total = num_steps * each + _sum_of_parabola(
            self.decode_linear, self.decode_quadratic, active_tokens, num_sequences, inside
        )
        if outside := num_steps - inside:
            limit = self.full_tokens
            first = active_tokens + num_sequences * inside - limit
            full = (self.decode_quadratic * limit + self.decode_linear) * limit
            total += full * outside + _sum_of_parabola(self.slope_beyond, 0.0, first, num_sequences, outside)
        return total


def _sum_of_parabola(linear: float, quadratic: float, start: float, stride: int, count: int) -> float:
    """Of linear x + quadratic x^2 over x = start, start + stride, ... (`count` terms)."""
    steps = count * (count - 1) / 2
    total = linear * (count * start + stride * steps)
    if quadratic:
        squares = steps * (2 * count - 1) / 3
        total += quadratic * (count * start * start + 2 * start * stride * steps + stride * stride * squares)
    return total


def published_curves(capacity_tokens: int) -> StepTime:
    """Dynamo's, for an engine that has room for so many tokens.

    Their decode parabola was fitted on 0..1 and falls beyond its peak; above 1 its slope at 1 goes on as a
    straight line. (Sequences that share blocks are each attended to in full, so the load may exceed 1.)
    """
    quadratic, linear, constant = -25.74, 54.01, 5.74
    return StepTime(
        prefill_constant=16.50142,
        prefill_linear=1.518344e-2,
        prefill_quadratic=4.209989e-7,
        decode_constant=constant,
        decode_linear=linear / capacity_tokens,
        decode_quadratic=quadratic / capacity_tokens**2,
        full_tokens=capacity_tokens,
        slope_beyond=(2 * quadratic + linear) / capacity_tokens,
    )


PUBLISHED = published_curves(1)
"""Decoding measured in shares of the capacity."""


def prompt_prefill_ms(num_tokens: int, max_batched_tokens: int, cached_tokens: int = 0) -> float:
    """Milliseconds of prefill by the published curve for one prompt that has the engine to itself."""
    total = 0.0
    for start in range(cached_tokens, num_tokens, max_batched_tokens):
        end = min(start + max_batched_tokens, num_tokens)
        total += PUBLISHED.prefill_ms(end - start, end * end - start * start)
    return total
