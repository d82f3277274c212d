"""JSON as Python's standard library reads and writes it, which engines and chat templates rely on.

Blanks behind separators, floats as Python spells them, integers of any length, NaN: what templates print of a
body must be what the engine's would.
"""

from __future__ import annotations

import json  # noqa: TID251 - the reason is this module's own
from typing import Any


def read(text: str | bytes) -> Any:  # noqa: ANN401 - whatever the client sent
    """Raises ValueError for what is no JSON, RecursionError for what is nested too deeply."""
    return json.loads(text)


def write(
    value: Any,  # noqa: ANN401 - whatever the conversation holds
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter `tojson` of chat templates: no HTML is escaped. Raises TypeError and ValueError."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
