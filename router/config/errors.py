"""Mistakes in a configuration: collected, never raised one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches


@dataclass(frozen=True, slots=True)
class Mistake:
    """`where` is the flag, variable or file key as it was written; `what` is wrong, and what is allowed."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


class ConfigErrors(Exception):
    """Everything that is wrong with a configuration, one line per mistake."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(str(mistake) for mistake in self.mistakes))


def did_you_mean(word: str, known: Iterable[str], spell: Callable[[str], str] = str) -> str:
    """` (did you mean x?)`, or nothing when no name is near; `spell` is how names are written here."""
    near = get_close_matches(word, list(known), n=1, cutoff=0.7)
    return f" (did you mean {spell(near[0])}?)" if near else ""
