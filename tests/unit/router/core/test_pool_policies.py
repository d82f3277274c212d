"""Which policy is in force where."""

from policies import make_policy
from router.core.pool_policies import PolicyPool, PoolPolicies


def test_pools_follow_the_policy_of_all_until_they_have_their_own():
    policies = PoolPolicies(make_policy("kv", {"prefill_load_scale": 2.0}))
    assert policies.decode is policies.policy
    assert policies.prefill.parameters["prefill_load_scale"] == 2.0
    policies.set(make_policy("random"), PolicyPool.DECODE)
    policies.set(make_policy("round_robin"))
    assert [each.name for each in (policies.policy, policies.decode, policies.prefill)] == [
        "round_robin", "random", "round_robin",
    ]  # fmt: skip
    assert policies.has_own(PolicyPool.DECODE)
    assert not policies.has_own(PolicyPool.PREFILL)


def test_prefill_workers_hold_no_streams_so_kv_does_not_count_their_blocks_there():
    policies = PoolPolicies(make_policy("kv"))
    assert policies.policy.parameters["track_active_blocks"]
    assert not policies.of(PolicyPool.PREFILL).parameters["track_active_blocks"]
    own = make_policy("kv")
    assert PoolPolicies(make_policy("random"), prefill=own).prefill is own


def test_turns_are_taken_in_each_pool_for_itself():
    policies = PoolPolicies(make_policy("round_robin"))
    assert policies.prefill is not policies.policy


def test_what_pools_need_is_what_any_of_them_reads():
    policies = PoolPolicies(make_policy("random"), prefill=make_policy("latency"), needs_overlap=False)
    assert not policies.policy.needs.overlap
    assert policies.pooled_needs.overlap
    assert policies.pooled_needs.times
    assert PoolPolicies(make_policy("random"), needs_overlap=True).pooled_needs.overlap
