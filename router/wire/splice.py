"""Members put into a JSON object without touching a byte of what is there."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def members_of(body: bytes) -> dict[str, msgspec.Raw] | None:
    """The top-level members of a JSON object, each as it stands in the body, of equal names the last; None
    for what is no object or no JSON."""
    try:
        return _decode_members(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def with_members(body: bytes, members: Mapping[str, bytes]) -> bytes:
    """The object with these members behind its own; `members`: JSON by name. Where it has one of the name,
    the new one counts: every reader in use here takes the last. The body must be an object."""
    if not members:
        return body
    end = body.rindex(b"}")
    added = b",".join(b'"%b":%b' % (name.encode(), value) for name, value in members.items())
    separator = b"" if body[:end].rstrip().endswith(b"{") else b","
    return b"".join((body[:end], separator, added, body[end:]))
