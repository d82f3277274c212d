"""The columns of one decision: from the core's state, in the worker's own blocks, to what a policy reads.

Everything is computed in tokens and divided by the pool's reference block, so that workers with different
block sizes compare. Lengths of byte prompts are corrected by the ratio that the engines' usage has taught.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from indexer.blocks import BlockHash, HashSpace, Unit
from indexer.byte_blocks import COVERED
from policies.base import Policy, TierWeights
from policies.types import Candidates, RoutingRequest, Slot, WorkerId
from router.core.loads import ActiveSequences
from router.core.overlap import Beliefs, Overlap
from router.core.pools import Pool
from router.core.prompt import Prompt


@dataclass(slots=True)
class Demand:
    """The complete blocks of a prompt in one hash space: hashes of those that can be shared, and the number
    of others. `tail_tokens`: those of the last block, which is not full. Without them a worker with larger
    blocks would seem to need less for the same prompt."""

    chain: Sequence[BlockHash] = ()
    num_unshared_blocks: int = 0
    tail_tokens: int = 0

    @classmethod
    def of(cls, prompt: Prompt | None, space: HashSpace, assumes_reuse: bool) -> Demand:
        """Of a batch only the first prompt has hashes; the blocks of the rest are counted without."""
        if prompt is None:
            return NO_DEMAND
        chain = prompt.chains.get(space, ()) if assumes_reuse else ()
        num_hashed = COVERED[prompt.unit][len(chain)]
        num_blocks, tail_tokens = divmod(prompt.num_tokens, space.block_tokens)
        if num_blocks < num_hashed:  # an estimate below what was hashed takes nothing away
            return cls(chain)
        return cls(chain, num_blocks - num_hashed, tail_tokens)


NO_DEMAND = Demand()
"""Of a request whose prompt is not known; not to be changed."""


@dataclass(slots=True, kw_only=True)
class Inputs:
    """What one decision is made from.

    `num_tokens`: the prompt's length, corrected by `token_ratio`, which is 1 unless it is measured in bytes.
    `byte_ratio` converts the blocks of byte prompts that are active already. Made for every request, so not
    frozen: each field of a frozen dataclass is set by a call, which takes 0.1 us.
    """

    request: RoutingRequest
    prompt: Prompt | None
    policy: Policy
    pool: Pool
    now: float
    num_tokens: int
    token_ratio: float
    byte_ratio: float
    demands: Mapping[HashSpace, Demand]
    overlap: Overlap
    is_looked_up: bool = True
    """Whether `overlap` was looked up: it may be empty all the same."""

    @property
    def unit(self) -> Unit:
        return self.prompt.unit if self.prompt else Unit.TOKENS

    def space_of(self, slot: Slot) -> HashSpace:
        """Of a candidate's blocks, when this was made."""
        return self.pool.row_spaces[self.pool.slots.index(slot)]


def build_candidates(
    inputs: Inputs, loads: ActiveSequences, beliefs: Beliefs, served_last: Callable[[], WorkerId | None]
) -> Candidates:
    """Only the columns that the policy needs; zeros elsewhere."""
    pool, needs = inputs.pool, inputs.policy.needs
    slots = pool.slots
    zeros = pool.zeros
    overlap = inputs.overlap
    return Candidates(
        workers=pool.workers,
        slots=slots,
        block_tokens=pool.block_tokens,
        prompt_blocks=inputs.num_tokens / pool.block_tokens,
        device_overlap=_tier(overlap.device, inputs) if needs.overlap else zeros,
        host_overlap=_tier(overlap.host, inputs) if needs.overlap else zeros,
        disk_overlap=_tier(overlap.disk, inputs) if needs.overlap else zeros,
        active_prefill_blocks=_active_prefill(pool, loads) if needs.loads else zeros,
        potential_decode_blocks=_potential_decode(inputs, loads) if needs.decode_blocks else zeros,
        num_active_requests=[loads.num_requests(slot) for slot in slots] if needs.loads else zeros,
        num_held_blocks=_held(pool, beliefs) if needs.overlap else zeros,
        served_last_row=pool.rows.get(served_last() or "") if needs.overlap else None,
    )


def cached_tokens(candidates: Candidates, weights: TierWeights) -> list[float]:
    """Prompt tokens that each row need not compute, the slower tiers by weight."""
    host, disk = weights
    block_tokens = candidates.block_tokens
    return [
        (on_device + host * in_host + disk * on_disk) * block_tokens
        for on_device, in_host, on_disk in zip(
            candidates.device_overlap, candidates.host_overlap, candidates.disk_overlap, strict=True
        )
    ]


def held_tokens(inputs: Inputs, slot: Slot) -> float:
    """Prompt tokens that one worker need not compute, the slower tiers by weight; no more than there are."""
    overlap, (host, disk) = inputs.overlap, inputs.policy.tier_weights
    row = inputs.pool.slots.index(slot)
    blocks = overlap.device.get(slot, 0) + host * overlap.host.get(slot, 0) + disk * overlap.disk.get(slot, 0)
    tokens = blocks * inputs.pool.row_spaces[row].block_tokens * inputs.token_ratio
    return min(float(inputs.num_tokens), tokens)


def overlap_lost_tokens(cached: Sequence[float], row: int) -> int:
    """How many more prompt tokens the best holder has cached than the chosen row: what a policy paid in
    prefill for spreading load."""
    return round(max(cached) - cached[row])


def _tier(depths: Mapping[Slot, int], inputs: Inputs) -> Sequence[float]:
    if not depths:
        return inputs.pool.zeros
    ratio, get = inputs.token_ratio, depths.get
    return [
        get(slot, 0) * scale * ratio
        for slot, scale in zip(inputs.pool.slots, inputs.pool.scales, strict=True)
    ]


def _held(pool: Pool, beliefs: Beliefs) -> list[int]:
    held = beliefs.held_blocks(pool.slots)
    return [
        num_blocks * space.block_tokens // pool.block_tokens
        for num_blocks, space in zip(held, pool.row_spaces, strict=True)
    ]


def _active_prefill(pool: Pool, loads: ActiveSequences) -> list[float]:
    return [loads.prefill_tokens(slot) / pool.block_tokens for slot in pool.slots]


def _potential_decode(inputs: Inputs, loads: ActiveSequences) -> list[float]:
    """Active blocks of each worker once this prompt has joined them. Counted in whole tokens, so that idle
    workers tie whatever their block sizes."""
    pool, unit, byte_ratio = inputs.pool, inputs.unit, inputs.byte_ratio
    demands, potential_tokens = inputs.demands, loads.potential_tokens
    return [
        potential_tokens(
            slot,
            unit,
            (demand := demands[space]).chain,
            demand.num_unshared_blocks,
            demand.tail_tokens,
            block_tokens=space.block_tokens,
            byte_ratio=byte_ratio,
        )
        / pool.block_tokens
        for slot, space in zip(pool.slots, pool.row_spaces, strict=True)
    ]
