"""Whether a worker gets requests: a table of states. Probing and connecting happen in the shell."""

from __future__ import annotations

from enum import StrEnum


class Health(StrEnum):
    """SUSPECT workers are skipped, unless every candidate is suspect."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"


class HealthSign(StrEnum):
    """What the shell saw of a worker. RESTARTED: a new engine process answered a probe, its cache is
    empty."""

    PROBE_OK = "probe_ok"
    PROBE_FAILED = "probe_failed"
    CONNECT_FAILED = "connect_failed"
    RESTARTED = "restarted"


NEXT_HEALTH: dict[tuple[Health, HealthSign], Health] = {
    (Health.HEALTHY, HealthSign.PROBE_OK): Health.HEALTHY,
    (Health.HEALTHY, HealthSign.PROBE_FAILED): Health.SUSPECT,
    (Health.HEALTHY, HealthSign.CONNECT_FAILED): Health.SUSPECT,
    (Health.HEALTHY, HealthSign.RESTARTED): Health.HEALTHY,
    (Health.SUSPECT, HealthSign.PROBE_OK): Health.HEALTHY,
    (Health.SUSPECT, HealthSign.PROBE_FAILED): Health.SUSPECT,
    (Health.SUSPECT, HealthSign.CONNECT_FAILED): Health.SUSPECT,
    (Health.SUSPECT, HealthSign.RESTARTED): Health.HEALTHY,
}
