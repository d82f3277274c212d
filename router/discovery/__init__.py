"""Where workers come from. One file for each source, one row in the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from router.discovery.base import DiscoverySource, WorkerSpec
from router.discovery.static import (
    FleetDefaults,
    StaticSource,
    WrongWorker,
    clashes,
    expand_worker,
    expand_workers,
)
from router.discovery.templates import TemplateError, at_rank

__all__ = [
    "SOURCES",
    "DiscoverySource",
    "FleetDefaults",
    "StaticSource",
    "TemplateError",
    "WorkerSpec",
    "WrongWorker",
    "at_rank",
    "clashes",
    "expand_worker",
    "expand_workers",
]

SOURCES: Mapping[str, Callable[[Sequence[WorkerSpec]], DiscoverySource]] = {"static": StaticSource}
"""Sources by name, made of the workers that the configuration writes down."""
