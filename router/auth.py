"""Keys that clients show, and which of their credentials go on to a worker."""

from __future__ import annotations

from collections.abc import Sequence
from hmac import compare_digest

from router.errors import Unauthorized
from router.wire.http1 import RequestHead

_SCHEME = b"bearer "


class ClientKeys:
    """The gateway's own keys. Without any, nobody is asked and credentials are the workers' affair."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = [key.encode() for key in keys]

    def check(self, head: RequestHead) -> None:
        """Raises Unauthorized unless a key is shown, as bearer token or in `x-api-key`."""
        if not self._keys:
            return
        shown = (_bearer(head.authorization), head.api_key)
        if not any(shown):
            raise Unauthorized("An API key is required: send it as 'Authorization: Bearer KEY'")
        # All pairs are compared, each in constant time: how long it takes tells nothing about the keys.
        matches = [compare_digest(one, key) for one in shown for key in self._keys]
        if not any(matches):
            raise Unauthorized("The API key is not valid")

    def forwarded(self, head: RequestHead, *, has_worker_key: bool) -> bytes:
        """Header lines with the client's credentials, as far as they are meant for a worker."""
        if self._keys:
            return b""
        lines = b""
        if head.authorization and not has_worker_key:
            lines = b"authorization: %b\r\n" % head.authorization
        if head.api_key:
            lines += b"x-api-key: %b\r\n" % head.api_key
        return lines


def _bearer(value: bytes) -> bytes:
    return value[len(_SCHEME) :].strip() if value[: len(_SCHEME)].lower() == _SCHEME else b""
