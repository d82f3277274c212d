"""Flags, environment and a file become `Settings`, or raise every mistake at once.

`options` is the table of what can be set; everything else here is derived from it or serves it.
"""

from router.config.addresses import in_brackets, is_loopback
from router.config.command_line import load_or_exit
from router.config.errors import ConfigErrors, Mistake
from router.config.load import load, own_address_in, worker_from
from router.config.settings import Settings, WorkerConfig

__all__ = [
    "ConfigErrors",
    "Mistake",
    "Settings",
    "WorkerConfig",
    "in_brackets",
    "is_loopback",
    "load",
    "load_or_exit",
    "own_address_in",
    "worker_from",
]
