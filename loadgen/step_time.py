"""How long one step of the modelled engine takes.

The two polynomials are those of the mocker that NVIDIA Dynamo published (v1.0, built-in timing model):

    prefill(n) = 4.209989e-7 n^2 + 1.518344e-2 n + 16.50142 ms     n = tokens computed
    decode(p)  = -25.74 p^2 + 54.01 p + 5.74 ms                    p = active tokens / capacity

A chunk that takes a sequence from c to n computed tokens pays the difference of the squares: attention looks
at what is already there, cached or computed.
"""

from __future__ import annotations

from collections.abc import Iterable

PREFILL_QUADRATIC = 4.209989e-7
PREFILL_LINEAR = 1.518344e-2
PREFILL_CONSTANT = 16.50142

DECODE_QUADRATIC = -25.74
DECODE_LINEAR = 54.01
DECODE_CONSTANT = 5.74


def prefill_ms(chunks: Iterable[tuple[int, int]]) -> float:
    """Milliseconds for the prefill of one step; each chunk is (tokens before, tokens after)."""
    linear = quadratic = 0
    for before, after in chunks:
        linear += after - before
        quadratic += after * after - before * before
    return PREFILL_CONSTANT + PREFILL_LINEAR * linear + PREFILL_QUADRATIC * quadratic


def decode_ms(load: float) -> float:
    """Milliseconds for one token of every decoder, at `load` = active tokens / capacity.

    The parabola was fitted on 0..1 and falls beyond its peak; above 1 its slope at 1 goes on as a straight
    line. (Sequences that share blocks are each attended to in full, so the load may exceed 1.)
    """
    within = min(load, 1.0)
    curve = (DECODE_QUADRATIC * within + DECODE_LINEAR) * within + DECODE_CONSTANT
    return curve + (load - within) * (2 * DECODE_QUADRATIC + DECODE_LINEAR)


def prompt_prefill_ms(num_tokens: int, max_batched_tokens: int, cached_tokens: int = 0) -> float:
    """Milliseconds of prefill for one prompt that has the engine to itself."""
    starts = range(cached_tokens, num_tokens, max_batched_tokens)
    return sum(prefill_ms([(start, min(start + max_batched_tokens, num_tokens))]) for start in starts)
