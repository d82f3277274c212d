"""A few seconds of the fuzzing job, the same each time: in the normal suite."""

from __future__ import annotations

from tests.fuzz.campaign import NUM_LANES, Campaign

CASES_PER_LANE = 60


async def test_whatever_clients_and_workers_send() -> None:
    campaign = Campaign(seed=1)
    await campaign.run(lambda case: case < CASES_PER_LANE)
    assert campaign.failures == []
    assert campaign.outcomes.total() == CASES_PER_LANE * NUM_LANES
    # It reaches all that it is about: requests served and refused, answers relayed, cut and refused.
    kinds = {outcome[:2] for outcome in campaign.outcomes}
    assert {("request", 0), ("request", 1), ("request", 2)} <= kinds
    assert {("answer", kind) for kind in ("whole", "cut", "broke", "refused")} <= kinds
