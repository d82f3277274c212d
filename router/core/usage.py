"""What engines' own counts teach: how long byte prompts are in tokens, and what should have been cached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from indexer.blocks import BlockHash
from indexer.parity import Subject
from router.core.limits import TOKEN_RATIO_MEMORY, TOKEN_RATIO_RANGE


@dataclass(frozen=True, slots=True)
class CachedTokens:
    """What was expected to be cached of one prompt, and what the engine reported."""

    expected: int
    reported: int


NO_SUBJECT = Subject("")


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class Expectation:
    """What was believed of the chosen worker when a prompt was sent to it. Made for every request and never
    changed; not frozen, since each field of a frozen dataclass is set by a call.

    `chain`: the prompt's complete blocks. `num_tokens` before any correction. `is_exact`: see Prompt.
    `cached_tokens`: what it should report. `exact_blocks`: leading blocks on its device by its own events
    alone; `num_losses`: how many losses they had told of by then. `subject`: whom what comes of it speaks of.
    """

    chain: Sequence[BlockHash] = ()
    num_tokens: int = 0
    is_exact: bool = False
    cached_tokens: int = 0
    exact_blocks: int = 0
    num_losses: int = 0
    subject: Subject = NO_SUBJECT


NOTHING_EXPECTED = Expectation()


def expected_cached_tokens(blocks: int, num_tokens: int, block_tokens: int) -> int:
    """Cached tokens of a prompt whose first `blocks` complete blocks are held.

    Engines compute at least the last token anew, so a prompt that is cached whole reports one block less.
    """
    return max(0, min(blocks, (num_tokens - 1) // block_tokens)) * block_tokens


def lacks_last_block(expected: int, reported: int, block_tokens: int) -> bool:
    """Whether the engine has found one block less than it holds: under EAGLE vLLM computes the last one that
    it finds anew, and SGLang needs the token behind it."""
    return expected - reported == block_tokens


class TokenRatio:
    """Real tokens per estimated token of the byte prompts of one base model; 1 until something was
    observed."""

    def __init__(self) -> None:
        self._real = 0.0
        self._estimated = 0.0
        self.value = 1.0

    def observe(self, real: int, estimated: int) -> None:
        if real <= 0 or estimated <= 0:
            return
        self._real = self._real * TOKEN_RATIO_MEMORY + real
        self._estimated = self._estimated * TOKEN_RATIO_MEMORY + estimated
        lowest, highest = TOKEN_RATIO_RANGE
        self.value = min(highest, max(lowest, self._real / self._estimated))
