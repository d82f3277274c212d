"""What the pages name exists: links, files, make targets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.sources import PACKAGES, ROOT, nothing, text_files

LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")
SOURCE_PATH = re.compile(rf"`((?:{'|'.join(PACKAGES)}|tests|docs|examples|deploy)/[\w./-]*)`")
NEWCOMER = "shortest_prompt_queue"  # CONTRIBUTING walks through adding it
MAKE_TARGET = re.compile(r"`make ([a-z-]+)")


def pages() -> Iterator[Path]:
    return (path for path in text_files() if path.suffix == ".md")


def matches(pattern: re.Pattern[str]) -> Iterator[tuple[Path, str]]:
    for page in pages():
        for match in pattern.finditer(page.read_text()):
            yield page, match[1]


def test_links_lead_somewhere() -> None:
    nothing(
        f"{page.relative_to(ROOT)}: {target}"
        for page, target in matches(LINK)
        if not (page.parent / target).exists()
    )


def test_named_files_exist() -> None:
    nothing(
        f"{page.relative_to(ROOT)}: {name}"
        for page, name in matches(SOURCE_PATH)
        if not (ROOT / name).exists() and NEWCOMER not in name
    )


def test_named_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    nothing(f"{page.relative_to(ROOT)}: {t}" for page, t in matches(MAKE_TARGET) if t not in targets)
