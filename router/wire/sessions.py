"""Which session a request belongs to: the names under which clients and other routers' users send one.

The narrowest name wins, wherever it stands: a conversation before a user, a user before a tenant. Keys are
for equality alone.
"""

from __future__ import annotations

import re

from router.wire.openai import ParsedBody

_SESSION = (
    b"x-session-id", b"x-session-affinity", b"session-id", b"session_id", b"x-claude-code-session-id",
    b"x-litellm-session-id", b"x-smg-routing-key",
)  # fmt: skip
_USER = (b"x-user-id",)
_TENANT = (b"x-tenant-id",)

_LINE = re.compile(
    rb"^(" + b"|".join(map(re.escape, _SESSION + _USER + _TENANT)) + rb"):[ \t]*([^\r\n]+)",
    re.IGNORECASE | re.MULTILINE,
)


def session_of(forwarded: bytes, body: ParsedBody | None) -> str | None:
    """`forwarded`: the header lines, as in RequestHead. None when nothing names a session."""
    headers = {name.lower(): value.rstrip() for name, value in _LINE.findall(forwarded)}
    found = (
        _first(headers, _SESSION),
        body.session if body else None,
        _first(headers, _USER),
        body.user if body else None,
        _first(headers, _TENANT),
    )
    return next(filter(None, found), None)


def _first(headers: dict[bytes, bytes], names: tuple[bytes, ...]) -> str | None:
    value = next((headers[name] for name in names if name in headers), b"")
    return value.decode("latin-1") or None
