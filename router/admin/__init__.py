"""The admin port: what the gateway knows, why it decided as it did, and the few things that can be changed.

An aiohttp application of its own, never on the public port. `docs/admin.md` shows each call.
"""

from router.admin.app import build_admin_app
from router.admin.fleet import Fleet, Preview

__all__ = ["Fleet", "Preview", "build_admin_app"]
