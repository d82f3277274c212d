import pytest

from router.core.health import NEXT_HEALTH, Health, HealthSign


@pytest.mark.parametrize("health", Health)
@pytest.mark.parametrize("sign", HealthSign)
def test_every_sign_is_answered_in_every_state_and_alone_decides(health, sign):
    failed = sign in (HealthSign.PROBE_FAILED, HealthSign.CONNECT_FAILED)
    assert NEXT_HEALTH[health, sign] is (Health.SUSPECT if failed else Health.HEALTHY)
