"""Token sources: a body's prompt as tokens or bytes, with block hashes. One file each, one row in the table.

What a source must do is said in `router.tokens.base`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from router.engines import WorkerSessions
from router.tokens.agreement import Agreement
from router.tokens.auto import AutoTokens
from router.tokens.base import ModelHints, TokenHost, TokenizeTarget, TokenSource
from router.tokens.bytes import BytesTokens
from router.tokens.engine import EngineTokens
from router.tokens.local import LocalModels, LocalTokens

__all__ = ["SOURCES", "LocalModels", "ModelHints", "TokenHost", "TokenSource", "TokenizeTarget"]


def _auto(host: TokenHost, sessions: WorkerSessions, models: LocalModels) -> TokenSource:
    local = LocalTokens(host, models)
    return AutoTokens(
        host,
        local=local,
        agreement=Agreement(local, sessions),
        engine=EngineTokens(host, sessions),
        cheap=BytesTokens(host),
    )


SOURCES: Mapping[str, Callable[[TokenHost, WorkerSessions, LocalModels], TokenSource]] = {
    "auto": _auto,
    "local": lambda host, sessions, models: LocalTokens(host, models),
    "engine": lambda host, sessions, models: EngineTokens(host, sessions),
    "bytes": lambda host, sessions, models: BytesTokens(host),
}
"""The values of `--tokens`. Sessions serve calls to workers, models make tokens here; both stay their
owner's."""
