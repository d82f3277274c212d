"""Settings as `serve` needs them: from this process's environment and files, or an end that can be read."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from router.config.errors import ConfigErrors
from router.config.load import load
from router.config.settings import Settings

USAGE_ERROR = 2
"""Exit code for a wrong command line or configuration, as argparse has it."""


def load_or_exit(argv: Sequence[str]) -> Settings:
    """The settings; or all mistakes on standard error and SystemExit(2)."""
    try:
        return load(argv, os.environ, _read_text)
    except ConfigErrors as errors:
        sys.stderr.write(_report(errors))
        raise SystemExit(USAGE_ERROR) from None


def _read_text(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")


def _report(errors: ConfigErrors) -> str:
    count = len(errors.mistakes)
    heading = f"kvgate serve: {count} mistake{'s' * (count != 1)} in the configuration, nothing was started:"
    return "\n".join([heading, *(f"  {mistake}" for mistake in errors.mistakes), ""])
