"""Token sources: a body's prompt as tokens or bytes, with block hashes. One file each, one row in the table.

What a source must do is said in `router.tokens.base`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from router.engines import WorkerSessions
from router.tokens.auto import AutoTokens
from router.tokens.base import TokenHost, TokenizeTarget, TokenSource
from router.tokens.bytes import BytesTokens
from router.tokens.engine import EngineTokens

__all__ = ["SOURCES", "TokenHost", "TokenSource", "TokenizeTarget"]

SOURCES: Mapping[str, Callable[[TokenHost, WorkerSessions], TokenSource]] = {
    "auto": lambda host, sessions: AutoTokens(
        host, exact=EngineTokens(host, sessions), cheap=BytesTokens(host)
    ),
    "engine": EngineTokens,
    "bytes": lambda host, sessions: BytesTokens(host),
}
"""The values of `--tokens`. The sessions serve calls to workers and stay their owner's."""
