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
        cause = self._cause(trust, parity)
        if cause and cause not in self._told and len(self._told) < WARNINGS_KEPT:
            self._told.add(cause)
            _logger.warning("worker %s: %s", worker_id, _in_words(trust, cause, place))
        elif self._told and trust.level is TrustLevel.EXACT and not parity.warning:
            self._told.clear()
            _logger.info("worker %s: its index is exact again", worker_id)
        self._doubt = trust

    def _cause(self, trust: Trust, parity: ParityState) -> str:
        """What to tell now: an index that stays inexact from one look to the next costs hits."""
        if parity.warning:
            return parity.warning
        if trust.level is TrustLevel.PREDICTED:  # its endpoint was refused, which doesn't pass by itself
            return trust.level.value
        if trust.level is TrustLevel.EXACT or trust != self._doubt:
            return ""
        return trust.reason if trust.level is TrustLevel.DEGRADED else trust.level.value


def _in_words(trust: Trust, cause: str, place: str) -> str:
    if cause == trust.level.value:
        words = f"its index is {cause}: {trust.reason}"
        return (
            f"{words} ({place}: does the engine publish KV events there?)"
            if trust.reason == NO_CONTACT
            else words
        )
    return f"its index is degraded: {cause}" if trust.level is TrustLevel.DEGRADED else cause
