"""Configuration: `load` turns flags, environment and a file into `Settings`, or raises every mistake at once."""

from router.config.errors import ConfigErrors, Mistake
from router.config.load import load
from router.config.settings import Settings, WorkerConfig

__all__ = ["ConfigErrors", "Mistake", "Settings", "WorkerConfig", "load"]
