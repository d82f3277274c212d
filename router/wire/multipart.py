"""The one field of a multipart form that routing reads: `model`.

A bounded scan, no parser: files in the form may be large and are for the worker to read.
"""

from __future__ import annotations

import re

from router.wire.limits import FORM_SCAN_BYTES, MODEL_BYTES_MAX

_MODEL_PART = re.compile(
    rb"""[\r\n]content-disposition:[^\r\n]*;[ \t]*name="?model"?[ \t]*(?:;[^\r\n]*)?\r?\n"""
    rb"""(?:[^\r\n]+\r?\n)*\r?\n"""
    rb"""([^\r\n]{1,%d})\r?\n--""" % MODEL_BYTES_MAX,
    re.IGNORECASE,
)


def model_of_form(body: bytes) -> str | None:
    """The value of the form's field `model`, or None where there is none within the scanned parts."""
    found = _MODEL_PART.search(body, 0, FORM_SCAN_BYTES)
    if found is None and len(body) > FORM_SCAN_BYTES:
        found = _MODEL_PART.search(body, max(FORM_SCAN_BYTES, len(body) - FORM_SCAN_BYTES) - 1)
    return found.group(1).decode("utf-8", "replace") if found else None
