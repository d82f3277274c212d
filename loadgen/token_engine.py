"""TokenEngine: the engine model with words in it. Prompts are token ids, every step hands out the next ones,
and KV events carry them. What the mock workers serve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from indexer.events import BlockRemoved, KvEvent
from loadgen.engine import EngineModel, StepOutput
from loadgen.sequences import TokenSequence

HASH_SEED = b"kvgate-mock"
"""Seed of every first block: equal prompts have equal hashes on all workers, as in vLLM from 0.29 on."""


@dataclass(slots=True)
class TokenOutput(StepOutput):
    """And who got a token (`sequence.last_token`), in the order of admission."""

    advanced: Sequence[TokenSequence]


class TokenEngine(EngineModel):
    """An EngineModel that is driven step by step."""

    def submit(
        self,
        request_id: str,
        prompt: Sequence[int],
        max_tokens: int,
        *,
        adapter: str = "",
        cache_salt: str = "",
    ) -> TokenSequence:
        """Queues a request; see `enqueue`."""
        sequence = self.sequence(request_id, prompt, max_tokens, adapter=adapter, cache_salt=cache_salt)
        self.enqueue(sequence)
        return sequence

    def sequence(
        self,
        request_id: str,
        prompt: Sequence[int],
        max_tokens: int,
        *,
        adapter: str = "",
        cache_salt: str = "",
    ) -> TokenSequence:
        """A request that is not queued yet."""
        return TokenSequence(
            id=request_id,
            tokens=list(prompt),
            max_tokens=max_tokens,
            block_tokens=self.settings.block_tokens,
            adapter=adapter,
            cache_salt=cache_salt,
            digest=HASH_SEED,
        )

    def held_tokens(self, sequence: TokenSequence) -> int:
        """Of its prompt, how many are cached now."""
        return len(self.pool.find_prefix(sequence.hashes)) * self.settings.block_tokens

    def finish_step(self) -> TokenOutput:
        """Ends the scheduled step; everyone in it whose tokens are all computed has one more."""
        advancing = [*self._decoders, *(sequence for sequence in self._chunks if not sequence.finished)]
        output = super().finish_step()
        advanced = cast("list[TokenSequence]", [each for each in advancing if each not in self._prefilling])
        for sequence in advanced:
            if sequence in self._decoders:
                self._decoders.settle(sequence)
            sequence.generate()
        events = [told for event in output.events for told in _one_by_one(event)]
        return TokenOutput(output.started, output.finished, events, advanced)


def _one_by_one(event: KvEvent) -> Sequence[KvEvent]:
    """vLLM tells of each evicted block in an event of its own."""
    if isinstance(event, BlockRemoved):
        return [BlockRemoved([block_hash]) for block_hash in event.block_hashes]
    return (event,)
