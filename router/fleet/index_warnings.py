"""What is wrong with a worker's index, said in the log once when it lasts, and once when it is mended."""

from __future__ import annotations

import logging

from indexer.parity import ParityState
from indexer.sequencer import NO_CONTACT
from indexer.trust import Trust, TrustLevel
from router.fleet.limits import WARNINGS_KEPT

_logger = logging.getLogger("kvgate.fleet")


class IndexWarnings:
    """Of one worker."""

    __slots__ = ("_doubt", "_told")

    def __init__(self) -> None:
        self._doubt: Trust | None = None
        self._told: set[str] = set()

    def look(self, worker_id: str, trust: Trust, parity: ParityState, place: str) -> None:
        """One more look at it. `place`: where its events are looked for."""
        if line := self._news(trust, parity, place):
            _logger.warning("worker %s: %s", worker_id, line)
        elif self._told and trust.level is TrustLevel.EXACT and not parity.warning:
            self._told.clear()
            _logger.info("worker %s: its index is exact again", worker_id)
        self._doubt = trust

    def _news(self, trust: Trust, parity: ParityState, place: str) -> str:
        """What to tell now, "" when there is nothing new: an index that stays inexact from one look to the
        next costs hits, and so does what the checks have found."""
        lasts = trust == self._doubt
        has_fallen = trust.level is TrustLevel.DEGRADED and (lasts or trust.reason == parity.warning)
        if has_fallen and self._is_new(line := _in_words(trust, place)):
            self._told.add(trust.reason)  # which says no more
            return line
        if parity.warning:
            return parity.warning if self._is_new(parity.warning) else ""
        # A refused endpoint doesn't pass by itself, a gap mostly does.
        if trust.level is TrustLevel.PREDICTED or (trust.level is TrustLevel.RECOVERING and lasts):
            return _in_words(trust, place) if self._is_new(trust.level.value) else ""
        return ""

    def _is_new(self, cause: str) -> bool:
        """And remembers that it was told."""
        if cause in self._told or len(self._told) >= WARNINGS_KEPT:
            return False
        self._told.add(cause)
        return True


def _in_words(trust: Trust, place: str) -> str:
    words = f"its index is {trust.level.value}: {trust.reason}"
    if trust.reason == NO_CONTACT:
        words += f" ({place}: does the engine publish KV events there?)"
    return words
