"""The policies in force: one for workers that do all of a request, one for each of the two pools that share
requests. A pool without a policy of its own follows the first.
"""

from __future__ import annotations

from copy import deepcopy
from enum import StrEnum

from policies.base import Needs, Policy
from policies.kv import Kv


class PolicyPool(StrEnum):
    """Whose policy it is."""

    PREFILL = "prefill"
    DECODE = "decode"


class PoolPolicies:
    """`policy` serves where a model has no pools. `needs_overlap`: what decode workers hold is read whatever
    the policies need."""

    def __init__(
        self,
        policy: Policy,
        *,
        prefill: Policy | None = None,
        decode: Policy | None = None,
        needs_overlap: bool = False,
    ) -> None:
        given = {PolicyPool.PREFILL: prefill, PolicyPool.DECODE: decode}
        self._own = {pool: own for pool, own in given.items() if own is not None}
        self._needs_overlap = needs_overlap
        self._follow(policy)

    def set(self, policy: Policy, pool: PolicyPool | None = None) -> None:
        """Of one pool from now on; None: of all that have none of their own."""
        if pool is None:
            self._follow(policy)
        else:
            self._own[pool] = policy
            if pool is PolicyPool.PREFILL:
                self.prefill = policy
            else:
                self.decode = policy
            self.pooled_needs = self._needs_of_all()

    def of(self, pool: PolicyPool) -> Policy:
        return self.prefill if pool is PolicyPool.PREFILL else self.decode

    def has_own(self, pool: PolicyPool) -> bool:
        return pool in self._own

    def _follow(self, policy: Policy) -> None:
        self.policy = policy
        self.decode = self._own.get(PolicyPool.DECODE, policy)
        self.prefill = self._own.get(PolicyPool.PREFILL) or _for_prefill(policy)
        self.pooled_needs = self._needs_of_all()
        """Of all requests in a fleet with pools."""

    def _needs_of_all(self) -> Needs:
        each = [self.policy.needs, self.prefill.needs, self.decode.needs]
        return Needs(
            overlap=self._needs_overlap or any(needs.overlap for needs in each),
            loads=any(needs.loads for needs in each),
            decode_blocks=any(needs.decode_blocks for needs in each),
            times=any(needs.times for needs in each),
            session=any(needs.session for needs in each),
        )


def _for_prefill(policy: Policy) -> Policy:
    """The same with a memory of its own. Prefill workers hold no streams: their blocks are those of prompts
    that wait there, which `kv` counts as prefill already (Dynamo's prefill router leaves them out too)."""
    if isinstance(policy, Kv):
        return Kv({**policy.parameters, "track_active_blocks": False})
    return deepcopy(policy)
