"""Who may use the admin port.

With an admin key: who shows it. Without one the port is on loopback, where every program of the machine
reaches it, browsers among them. So web pages are kept out: those of other sites betray themselves by
Sec-Fetch-Site or Origin, and a name that was rebound to 127.0.0.1 by Host.
"""

from __future__ import annotations

import hmac

from aiohttp import web

from router.config import Settings, is_loopback
from router.errors import ClientError, Unauthorized


class Forbidden(ClientError):
    """A web page's request, or one under a foreign host name."""

    status = 403
    type = "permission_error"
    code = "forbidden"


def check_access(request: web.Request, settings: Settings) -> None:
    """Raises Unauthorized or Forbidden."""
    if request.path == "/metrics" and settings.metrics_without_key:
        return
    if settings.admin_api_key is not None:
        _check_key(request, settings.admin_api_key)
    else:
        _check_is_local(request)


def _check_key(request: web.Request, key: str) -> None:
    scheme, _, shown = request.headers.get("Authorization", "").partition(" ")
    is_right = hmac.compare_digest(shown.strip().encode("utf-8", "replace"), key.encode())
    if scheme.lower() != "bearer" or not is_right:
        raise Unauthorized("The admin port needs its key: Authorization: Bearer KEY")


def _check_is_local(request: web.Request) -> None:
    if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        raise Forbidden("Pages of other sites may not use the admin port")
    origin = request.headers.get("Origin")
    if origin is not None and origin != str(request.url.origin()):
        raise Forbidden(f"Pages of other sites may not use the admin port, {origin!r} is one")
    host = request.url.host or ""
    if not is_loopback(host):
        raise Forbidden(f"Without an admin key the admin port answers to localhost only, not to {host!r}")
