"""`kv`: the least work, counting what a worker has cached against what it still has to do.

The cost is in blocks: those still to be prefilled (the worker's backlog and this prompt, less the cached
ones) plus those that will be resident while decoding. Formula, parameters and defaults are those of NVIDIA
Dynamo's KV router, without its taints and its shared external cache.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

from policies.base import BasePolicy, Needs, TierWeights
from policies.costs import cheapest, sample_by_temperature
from policies.parameters import Parameter, table_of
from policies.types import Candidates, Choice, RoutingRequest


class Kv(BasePolicy):
    """For each row, in reference blocks:

    excess  = (active_prefill - least active_prefill of the candidates) / ceil(prompt_blocks)
    credit  = overlap_score_credit / (1 + overlap_score_credit_decay * excess) * device_overlap
              + host_cache_hit_weight * host_overlap + disk_cache_hit_weight * disk_overlap
    prefill = active_prefill + prompt_blocks           (0 without track_prefill_tokens)
    cost    = prefill_load_scale * max(0, prefill - credit)
              + potential_decode_blocks                (0 without track_active_blocks)
              + active_request_weight * num_active_requests
              + prefill_load_scale * stall_weight * num_active_requests * max(0, prompt_blocks - credit)
                                                     (0 without track_prefill_tokens)
    """

    name = "kv"
    PARAMETERS = table_of(
        Parameter(
            "overlap_score_credit", 1.0, 0.0, None,
            "Blocks of prefill that one block cached on the device takes off a worker's cost.",
        ),
        Parameter(
            "overlap_score_credit_decay", 0.0, 0.0, None,
            "How quickly that credit fades on a worker with more prefill waiting than the least busy one;"
            " 1 halves it when the difference is as long as the new prompt.",
        ),
        Parameter(
            "prefill_load_scale", 1.0, 0.0, None,
            "Weight of blocks to be prefilled against blocks resident while decoding.",
        ),
        Parameter(
            "host_cache_hit_weight", 0.75, 0.0, 1.0,
            "Blocks of prefill saved by one block that is held in host memory.",
        ),
        Parameter(
            "disk_cache_hit_weight", 0.25, 0.0, 1.0,
            "Blocks of prefill saved by one block that is held on disk.",
        ),
        Parameter(
            "active_request_weight", 0.0, 0.0, None,
            "Blocks added to a worker's cost for each of its active requests.",
        ),
        Parameter(
            "stall_weight", 0.0, 0.0, None,
            "Blocks of prefill that each active request adds for one block of the new prompt that is not"
            " cached: the streams that its prefill holds up.",
        ),
        Parameter(
            "temperature", 0.0, 0.0, None,
            "0 takes the cheapest worker; above 0 draws one, the cheaper the likelier, evener as it rises.",
        ),
        Parameter(
            "track_prefill_tokens", True, 0.0, 1.0,
            "Count the prefill that a worker has to do, its own backlog and the new prompt.",
        ),
        Parameter(
            "track_active_blocks", True, 0.0, 1.0,
            "Count the blocks that active requests hold on a worker.",
        ),
        Parameter(
            "assume_kv_reuse", True, 0.0, 1.0,
            "Count blocks that active requests of a worker share only once.",
        ),
    )  # fmt: skip

    def __init__(self, parameters: Mapping[str, object] | None = None) -> None:
        super().__init__(parameters)
        value = self.number
        self._credit = value("overlap_score_credit")
        self._decay = value("overlap_score_credit_decay")
        self._prefill_scale = value("prefill_load_scale")
        self._request_weight = value("active_request_weight")
        self._temperature = value("temperature")
        self._tracks_prefill = bool(value("track_prefill_tokens"))
        self._stall_weight = self._prefill_scale * value("stall_weight") * self._tracks_prefill
        self._tracks_blocks = bool(value("track_active_blocks"))
        self.tier_weights = TierWeights(value("host_cache_hit_weight"), value("disk_cache_hit_weight"))
        self.assumes_kv_reuse = bool(value("assume_kv_reuse"))
        self.needs = Needs(overlap=True, loads=True, decode_blocks=self._tracks_blocks)

    def choose(self, request: RoutingRequest, candidates: Candidates, rng: random.Random) -> Choice:
        costs = self.costs(candidates)
        if self._temperature > 0:
            row = sample_by_temperature(costs, self._temperature, rng)
            return Choice(row, costs, f"drawn at temperature {self._temperature:g}")
        return cheapest(candidates, costs, rng)

    def costs(self, candidates: Candidates) -> list[float]:
        """The cost of every row, in reference blocks."""
        credits = self._credit_blocks(candidates)
        prefill = self._prefill_costs(candidates, credits)
        if self._tracks_blocks:
            prefill = [a + b for a, b in zip(prefill, candidates.potential_decode_blocks, strict=True)]
        if weight := self._request_weight:
            prefill = [a + weight * n for a, n in zip(prefill, candidates.num_active_requests, strict=True)]
        if weight := self._stall_weight:
            prompt = candidates.prompt_blocks
            prefill = [
                a + weight * n * max(0.0, prompt - credit)
                for a, n, credit in zip(prefill, candidates.num_active_requests, credits, strict=True)
            ]
        return prefill

    def _prefill_costs(self, candidates: Candidates, credits: Sequence[float]) -> list[float]:
        """Scaled blocks still to be prefilled. The credit counts against the backlog too, never below 0."""
        if not self._tracks_prefill:
            return [0.0] * len(candidates)
        scale, prompt = self._prefill_scale, candidates.prompt_blocks
        missing = [
            active + prompt - credit
            for active, credit in zip(candidates.active_prefill_blocks, credits, strict=True)
        ]
        return [scale * blocks if blocks > 0 else 0.0 for blocks in missing]

    def _credit_blocks(self, candidates: Candidates) -> Sequence[float]:
        """Blocks that need no prefill, by tier, the device's at its decayed rate."""
        credits = self._device_credits(candidates)
        if any(candidates.host_overlap) or any(candidates.disk_overlap):
            host, disk = self.tier_weights
            slower = zip(candidates.host_overlap, candidates.disk_overlap, strict=True)
            return [
                credit + host * in_host + disk * on_disk
                for credit, (in_host, on_disk) in zip(credits, slower, strict=True)
            ]
        return credits

    def _device_credits(self, candidates: Candidates) -> list[float]:
        """One credit for each device block, unless that decays with the excess backlog."""
        credit, device = self._credit, candidates.device_overlap
        if self._decay == 0:
            return [credit * blocks for blocks in device]
        active = candidates.active_prefill_blocks
        least = min(active)
        # An empty prompt has no length to measure the excess by: count it as one block.
        prompt = max(1, math.ceil(candidates.prompt_blocks))
        return [
            credit / (1 + self._decay * (backlog - least) / prompt) * blocks
            for backlog, blocks in zip(active, device, strict=True)
        ]
