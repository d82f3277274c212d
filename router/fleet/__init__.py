"""The workers as the shell sees them: probed, watched, listened to, in step with the decision core."""

from router.fleet.fleet import Fleet
from router.fleet.token_host import FleetTokenHost

__all__ = ["Fleet", "FleetTokenHost"]
