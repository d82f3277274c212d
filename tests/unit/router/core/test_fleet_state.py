"""What the core knows of its workers, by itself."""

from policies.types import Role, Transfer
from router.core.fleet_state import FleetState
from router.core.routing import RoutingCore
from tests.support.fleets import make_core, silent


def test_requests_are_another_matter():
    assert issubclass(RoutingCore, FleetState)
    assert not hasattr(FleetState, "route")


def test_a_fleet_has_pools_while_some_worker_does_only_a_part():
    core = make_core([silent("w")])
    assert not core.has_pools
    core.reconcile([silent("w"), silent("d", role=Role.DECODE)], now=0.0)
    assert core.has_pools
    core.reconcile([silent("w")], now=1.0)
    assert not core.has_pools


def test_a_worker_that_changes_its_role_keeps_what_it_holds_and_has_booked():
    core = make_core([silent("w")])
    slot = core.slot_of("w")
    changes = core.reconcile([silent("w", role=Role.PREFILL, transfer=Transfer(protocol="nixl"))], now=1.0)
    assert [worker.id for worker in changes.changed] == ["w"]
    assert core.slot_of("w") == slot
    assert core.worker("w").worker.role is Role.PREFILL
