"""Prometheus text: a few samples picked by byte search, and the texts of many workers made one.

Parsing such a text whole takes milliseconds, which is too much for each worker each second.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from router.engines.limits import LINES_PER_TURN

Labels = Mapping[str, str]

_LABEL = re.compile(rb'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')


def find_samples(text: bytes, name: bytes) -> Iterator[tuple[Labels, float]]:
    """Labels and value of every sample of the metric `name`; lines that are no samples are passed over."""
    position = 0
    while (start := _line_start(text, name, position)) >= 0:
        end = text.find(b"\n", start)
        line = text[start : end if end >= 0 else len(text)]
        position = start + len(line)
        if (sample := _sample(line[len(name) :])) is not None:
            yield sample


def _line_start(text: bytes, name: bytes, position: int) -> int:
    if position == 0 and text.startswith(name):
        return 0
    found = text.find(b"\n" + name, position)
    return found + 1 if found >= 0 else -1


def _sample(rest: bytes) -> tuple[Labels, float] | None:
    """What follows the name: `{labels} value` or ` value`; None where the name goes on."""
    if rest[:1] not in (b"{", b" "):
        return None
    labels, brace, value = rest.rpartition(b"}")
    fields = (value if brace else rest).split()
    try:
        number = float(fields[0])
    except (IndexError, ValueError):
        return None
    if not math.isfinite(number):
        return None
    return {k.decode(): v.decode("utf-8", "replace") for k, v in _LABEL.findall(labels)}, number


@dataclass(slots=True)
class _Family:
    """One metric: its HELP and TYPE lines, then the samples of all workers."""

    comments: dict[str, str] = field(default_factory=dict)
    samples: list[str] = field(default_factory=list)


_SAMPLE_LINE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+([^\s{}]+(?:\s+-?\d+)?)\s*")
_COMMENT_LINE = re.compile(
    r"# (HELP(?= )|TYPE(?= \S+ (?:counter|gauge|histogram|summary|untyped)$)) ([a-zA-Z_:][\w:]*)(?: .*)?"
)
_OWN_WORKER_LABEL = re.compile(r'(^|,)worker="')


async def merge_metrics(texts: Mapping[str, str]) -> str:
    """One text of those by worker id: every sample gets the label `worker`, every family one HELP and TYPE.

    A label `worker` that an engine has set itself becomes `exported_worker`. Lines that are no samples are
    left out, so that one worker's rubbish does not spoil the rest.
    """
    families: dict[str, _Family] = {}
    for worker_id, text in texts.items():
        label = f'worker="{_escaped(worker_id)}"'
        lines = text.splitlines()
        current = ""
        for start in range(0, len(lines), LINES_PER_TURN):
            current = _add_lines(families, label, lines[start : start + LINES_PER_TURN], current)
            await asyncio.sleep(0)
    merged = (line for family in families.values() for line in (*family.comments.values(), *family.samples))
    return "".join(f"{line}\n" for line in merged)


def _add_lines(families: dict[str, _Family], label: str, lines: Iterable[str], current: str) -> str:
    """Sort lines into their families; `current` is the one that the last comment named, and is returned."""
    for line in lines:
        if line.startswith("#"):
            if (match := _COMMENT_LINE.fullmatch(line)) is not None:
                word, current = match.groups()
                families.setdefault(current, _Family()).comments.setdefault(word, line)
        elif (match := _SAMPLE_LINE.fullmatch(line)) is not None:
            name, labels, value = match.groups()
            family = current if current and name.startswith(current) else name
            if labels and 'worker="' in labels:
                labels = _OWN_WORKER_LABEL.sub(r'\1exported_worker="', labels)
            sample = f"{name}{{{label},{labels}}} {value}" if labels else f"{name}{{{label}}} {value}"
            families.setdefault(family, _Family()).samples.append(sample)
    return current


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
