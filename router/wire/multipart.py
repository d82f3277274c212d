"""The one field of a multipart form that routing reads: `model`.

A bounded scan, no parser: files in the form may be large and are for the worker to read.
"""

from __future__ import annotations

import re

SCAN_BYTES = 64 * 1024
"""How much is searched at each end of a body: clients write fields before or after the file."""

MODEL_BYTES_MAX = 1024
"""Longest name that is read; names of models are far shorter."""

_MODEL_PART = re.compile(
    rb"""[\r\n]content-disposition:[^\r\n]*;\s*name="?model"?\s*(?:;[^\r\n]*)?\r?\n"""
    rb"""(?:[^\r\n]+\r?\n)*\r?\n"""
    rb"""([^\r\n]{1,%d})\r?\n--""" % MODEL_BYTES_MAX,
    re.IGNORECASE,
)


def model_of_form(body: bytes) -> str | None:
    """The value of the form's field `model`, or None where there is none within the scanned parts."""
    found = _MODEL_PART.search(body, 0, SCAN_BYTES)
    if found is None and len(body) > SCAN_BYTES:
        found = _MODEL_PART.search(body, max(SCAN_BYTES, len(body) - SCAN_BYTES) - 1)
    return found.group(1).decode("utf-8", "replace") if found else None
