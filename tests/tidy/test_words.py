"""Words that have no place in the repository: reminders, and references that readers cannot follow."""

from __future__ import annotations

import re

from tests.tidy.sources import ROOT, nothing, text_files

# Written in pieces, so that this file passes its own test.
BANNED = {
    "a reminder instead of the work": r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b",
    "a path outside the repository": r"\.\./sha" r"red|/wo" r"rk/",
    "a tracker that readers do not have": r"\b[Ii]ss" r"ues? #?\d",
    "a page that is not here": r"\bDES" r"IGN(\.md| \d| section)|\bDECI" r"SIONS?( \d|\.md)",
}


def test_no_banned_words() -> None:
    nothing(
        f"{path.relative_to(ROOT)}:{number}: {why}: {line.strip()}"
        for path in text_files()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        for why, pattern in BANNED.items()
        if re.search(pattern, line)
    )
