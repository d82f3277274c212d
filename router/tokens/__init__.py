"""Token sources: a body's prompt as tokens or bytes, with block hashes. One file each, one row in the table.

What a source must do is said in `router.tokens.base`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import aiohttp

from router.tokens.auto import AutoTokens
from router.tokens.base import TokenHost, TokenizeTarget, TokenSource
from router.tokens.bytes import BytesTokens
from router.tokens.engine import EngineTokens

__all__ = ["SOURCES", "TokenHost", "TokenSource", "TokenizeTarget"]

SOURCES: Mapping[str, Callable[[TokenHost, aiohttp.ClientSession], TokenSource]] = {
    "auto": lambda host, session: AutoTokens(
        host, exact=EngineTokens(host, session), cheap=BytesTokens(host)
    ),
    "engine": EngineTokens,
    "bytes": lambda host, session: BytesTokens(host),
}
"""The values of `--tokens`. The session serves calls to workers and stays its owner's."""
