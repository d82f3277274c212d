"""Large real data that is not part of the project: where it lies, or why a test that needs it is skipped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

DEFAULT = Path(__file__).resolve().parents[3] / "shared"


def data_path(name: str) -> Path:
    """`name` below KVGATE_DATA (a folder `shared` beside the checkout, unless told otherwise); else skips."""
    path = Path(os.environ.get("KVGATE_DATA", DEFAULT)) / name
    if not path.exists():
        pytest.skip(f"no {path}: set KVGATE_DATA to a folder with {name}")
    return path
