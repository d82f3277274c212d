"""The contract of discovery, and what it yields.

A source yields the whole set of workers each time, never what changed: comparing is the core's business, and
a change that was missed is made good by the next set.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from policies.types import Role, WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """A worker as configured or discovered; what it is, a probe finds out."""

    id: WorkerId
    """Its configured name, else `host:port`, or the path of its Unix socket."""
    url: str
    """As `WorkerAddress` spells it: `http://host:port`, `https://host:port` or `unix:/path`."""
    kv_events: str | None = None
    """ZMQ endpoint of its KV events, `bind:tcp://...` where the engine's socket connects; `templates.at_rank`
    makes that of a data-parallel rank of it."""
    kv_replay: str | None = None
    role: Role = Role.BOTH
    bootstrap_port: int | None = None
    """Of a prefill worker's bootstrap server, where that is not as the engine tells or its default."""
    kv_address: str | None = None
    """`host:port` of its KV socket or its bootstrap server, where that is not at the host of its URL."""
    connector: str = "nixl"
    """How a vLLM worker hands over; see `router.hand_over.PROTOCOLS`."""
    api_key: str | None = field(default=None, repr=False)


class DiscoverySource(Protocol):
    """Yields whole sets of workers, the first one soon."""

    def watch(self) -> AsyncIterator[Sequence[WorkerSpec]]: ...
