"""How an attempt of a request can end. Each of these frees its booking."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """WORKER_FAILED: it broke or could not be reached. REJECTED: refused before it reached a
    worker. DRAINED: cut because the gateway stops."""

    DONE = "done"
    CLIENT_GONE = "client_gone"
    WORKER_FAILED = "worker_failed"
    TIMED_OUT = "timed_out"
    REJECTED = "rejected"
    DRAINED = "drained"
