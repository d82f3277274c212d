"""How workers of a pool are written: `URL`, `URL,8998`, `URL,key=value,...`, or `URL 8998` and `URL none` as
other routers have it. What the keys may be is not judged here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_NO_PORT = "none"
"""In place of a bootstrap port, as SGLang's router has it."""


def pool_entries(raws: Iterable[Any]) -> tuple[list[dict[Any, Any]], list[str]]:
    """Entries as `workers:` of a file has them, and what can't be read. A mapping is one already; of a text
    and of a list each word is a worker, or the bootstrap port of the one before."""
    entries: list[dict[Any, Any]] = []
    mistakes: list[str] = []
    for raw in raws:
        if isinstance(raw, dict):
            entries.append(dict(raw))
            continue
        for word in _words(raw):
            if entries and _is_port(word):
                entries[-1].setdefault("bootstrap_port", word)
            else:
                entries.append(_entry(word, mistakes))
    return entries, mistakes


def _words(raw: Any) -> list[str]:  # noqa: ANN401 - whatever a file holds
    return " ".join(map(str, raw)).split() if isinstance(raw, list) else str(raw).split()


def _is_port(word: str) -> bool:
    return word.isdecimal() or word.lower() == _NO_PORT


def _entry(word: str, mistakes: list[str]) -> dict[Any, Any]:
    url, *values = word.split(",")
    entry: dict[Any, Any] = {"url": url}
    for value in values:
        name, equals, text = value.partition("=")
        name = name.strip().replace("-", "_")
        if not equals and _is_port(value):
            name, text = "bootstrap_port", value
        elif not equals:
            hint = "must be a bootstrap port or key=value; a further worker stands behind a blank"
            mistakes.append(f"'{value}' behind {url} {hint}")
            continue
        if name in entry:
            mistakes.append(f"{name} is given twice for {url}")
        entry[name] = text
    return entry
