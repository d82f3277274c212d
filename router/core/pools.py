"""The candidates of one model as columns that do not change from request to request."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from indexer.blocks import HashSpace
from policies.types import Role, Slot, Worker, WorkerId
from router.core.limits import DEFAULT_BLOCK_TOKENS


class Part(StrEnum):
    """What of a request the candidates are asked to do."""

    ANSWER = "answer"
    """Decode, and have the prompt computed here or elsewhere."""
    WHOLE = "whole"
    """Decode, and compute the prompt too."""
    PREFILL = "prefill"
    """Compute the prompt and hand it over."""

    def fits(self, worker: Worker) -> bool:
        if self is Part.PREFILL:
            return worker.role is Role.PREFILL
        if worker.role is Role.DECODE:
            return worker.prefills_alone or self is Part.ANSWER
        return worker.role is Role.BOTH


def hash_space_of(worker: Worker, hashing: str = "kvgate") -> HashSpace:
    """The space of the worker's blocks as far as it tells itself; the default block size if it does not."""
    return HashSpace(worker.base_model, worker.block_tokens or DEFAULT_BLOCK_TOKENS, hashing=hashing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Workers and their slots, row by row, and what follows from them.

    `block_tokens`: tokens of a reference block. `scales[row]`: reference blocks in one block of that worker.
    `spaces`: the bitmask of the slots in each hash space. `row_spaces[row]`: that of the worker. `rows`: by
    worker.
    """

    workers: tuple[Worker, ...]
    slots: tuple[Slot, ...]
    block_tokens: int
    scales: tuple[float, ...]
    spaces: dict[HashSpace, int]
    row_spaces: tuple[HashSpace, ...]
    zeros: tuple[int, ...]
    rows: dict[WorkerId, int]

    @classmethod
    def of(cls, members: Iterable[tuple[Worker, Slot, HashSpace]], *, block_tokens: int) -> Pool:
        """At least one member. `block_tokens` of the reference block: the smallest of all workers that serve
        the model, so that costs keep their unit when one of them is not a candidate for a while."""
        workers, slots, row_spaces = zip(*members, strict=True)
        spaces: dict[HashSpace, int] = {}
        for space, slot in zip(row_spaces, slots, strict=True):
            spaces[space] = spaces.get(space, 0) | 1 << slot
        return cls(
            workers=workers,
            slots=slots,
            block_tokens=block_tokens,
            scales=tuple(space.block_tokens / block_tokens for space in row_spaces),
            spaces=spaces,
            row_spaces=row_spaces,
            zeros=(0,) * len(slots),
            rows={worker.id: row for row, worker in enumerate(workers)},
        )
