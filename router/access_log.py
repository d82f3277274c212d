"""One line for each request, where the operator asks for it."""

from __future__ import annotations

import logging
from collections.abc import Callable

import orjson

from router.logs import ACCESS_LOGGER

_logger = logging.getLogger(ACCESS_LOGGER)

AccessLog = Callable[[dict[str, object]], None]


def access_log(form: str | None) -> AccessLog | None:
    """A writer of lines in that form (`text`, `json`), or None when there are to be none."""
    return None if form is None else _FORMS[form]


def _text(fields: dict[str, object]) -> None:
    _logger.info(" ".join(f"{name}={value}" for name, value in fields.items()))


def _json(fields: dict[str, object]) -> None:
    _logger.info(orjson.dumps(fields).decode())


_FORMS: dict[str, AccessLog] = {"text": _text, "json": _json}
