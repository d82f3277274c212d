"""How far a worker's overlap may be believed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class TrustLevel(StrEnum):
    """EXACT: fed by sound events. RECOVERING: a gap is being replayed. DEGRADED: events are in doubt.
    PREDICTED: the worker publishes no events, only our own decisions are believed."""

    EXACT = "exact"
    RECOVERING = "recovering"
    DEGRADED = "degraded"
    PREDICTED = "predicted"


@dataclass(frozen=True, slots=True)
class Trust:
    """A level, and in words why it is not (or not wholly) exact."""

    level: TrustLevel
    reason: str = ""
