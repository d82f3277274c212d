"""How far a worker's overlap may be believed: the levels, what lowers and raises them, and how much evidence
that takes.

Whoever finds a sign (the sequencer a gap, the publisher another layout, the parity checks a disagreement)
hands it in with its reason; the level follows from the table here and from nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from indexer.limits import AGREEMENTS_TO_RAISE, DISAGREEMENTS_TO_LOWER


class TrustLevel(StrEnum):
    """EXACT: fed by sound events. RECOVERING: a gap is being replayed. DEGRADED: events are in doubt.
    PREDICTED: the worker publishes no events, only our own decisions are believed."""

    EXACT = "exact"
    RECOVERING = "recovering"
    DEGRADED = "degraded"
    PREDICTED = "predicted"


@dataclass(frozen=True, slots=True)
class Trust:
    """A level, and in words why it is not (or not wholly) exact."""

    level: TrustLevel
    reason: str = ""


EXACT = Trust(TrustLevel.EXACT)
"""Of a worker without any sign against it, whose whole history is known."""


class Sign(StrEnum):
    """What speaks against a worker's claims."""

    SILENT = "silent"
    LAYOUT = "layout"
    BLOCKS = "blocks"
    STREAM = "stream"


@dataclass(frozen=True, slots=True)
class Rule:
    """The level while a sign is there; in words, what brings the sign up and what takes it away."""

    level: TrustLevel
    falls: str
    rises: str


RULES: Mapping[Sign, Rule] = {
    Sign.SILENT: Rule(
        TrustLevel.PREDICTED,
        "no KV events are expected from the worker, or its event endpoint can't be opened",
        "an event endpoint that can be read is configured, opened, and the worker tells its block size",
    ),
    Sign.LAYOUT: Rule(
        TrustLevel.DEGRADED,
        "one stored event of the device cuts its blocks otherwise than prompts are cut",
        "prompts are cut as its events show, or its history begins anew",
    ),
    Sign.BLOCKS: Rule(
        TrustLevel.DEGRADED,
        f"{DISAGREEMENTS_TO_LOWER} checked prompts in a row left no block of theirs in its events, whatever "
        "the model",
        f"{AGREEMENTS_TO_RAISE} checked prompts in a row left theirs, or its engine restarts",
    ),
    Sign.STREAM: Rule(
        TrustLevel.RECOVERING,
        "one message is missing, or the connection to its events is lost or was never made",
        "the missing messages were replayed, or all that was learnt before was dropped",
    ),
}
"""The first sign that is there decides. Without any a worker is EXACT."""


def judge(signs: Mapping[Sign, str], missing_history: str = "") -> Trust:
    """The trust that follows from the signs, each with its reason; an empty reason means it is absent.

    `missing_history`: what an exact worker's claims lack. They are sound without it, only fewer.
    """
    for sign, rule in RULES.items():
        if reason := signs.get(sign):
            return Trust(rule.level, reason)
    return Trust(TrustLevel.EXACT, missing_history) if missing_history else EXACT


class Verdict(StrEnum):
    """OPEN: not enough was seen."""

    OPEN = "open"
    AGREES = "agrees"
    DIFFERS = "differs"


class Evidence:
    """Observations of one question as a verdict that a single odd one does not turn.

    The first agreement settles an open question: a hash cannot agree by chance. A disagreement can (an
    eviction in between, an event on its way), so it takes several in a row.
    """

    __slots__ = ("_run", "_to_lower", "_to_raise", "num_agreed", "num_differed", "verdict")

    def __init__(
        self, *, to_lower: int = DISAGREEMENTS_TO_LOWER, to_raise: int = AGREEMENTS_TO_RAISE
    ) -> None:
        self._to_lower = to_lower
        self._to_raise = to_raise
        self.num_agreed = 0
        self.num_differed = 0
        self.verdict = Verdict.OPEN
        self._run = 0  # above 0: agreements in a row, below: disagreements

    def note(self, agrees: bool) -> None:
        """One more observation."""
        if agrees:
            self.num_agreed += 1
            self._run = self._run + 1 if self._run > 0 else 1
            if self.verdict is Verdict.OPEN or self._run >= self._to_raise:
                self.verdict = Verdict.AGREES
        else:
            self.num_differed += 1
            self._run = self._run - 1 if self._run < 0 else -1
            if -self._run >= self._to_lower:
                self.verdict = Verdict.DIFFERS

    @property
    def is_settled(self) -> bool:
        """Whether it agrees and nothing since speaks against it: a sample now and then will do."""
        return self.verdict is Verdict.AGREES and self._run >= self._to_raise
