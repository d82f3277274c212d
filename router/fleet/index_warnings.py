"""What is wrong with a worker's index, said in the log once when it lasts, and once when it is mended."""

from __future__ import annotations

import logging

from indexer.feed import FeedStats
from indexer.parity import ParityState
from indexer.sequencer import NO_CONTACT
from indexer.trust import Trust, TrustLevel
from router.fleet.limits import RUBBISH_MESSAGES, WARNINGS_KEPT

MALFORMED_PAYLOAD = "malformed_payload"

_logger = logging.getLogger("kvgate.fleet")

_UNREADABLE = (MALFORMED_PAYLOAD, "frame_count", "sequence_frame")
"""Reasons in FeedStats.ignored for which a whole message is nothing."""


class IndexWarnings:
    """Of one worker."""

    __slots__ = ("_doubt", "_has_told_of_rubbish", "_told")

    def __init__(self) -> None:
        self._doubt: Trust | None = None
        self._told: set[str] = set()
        self._has_told_of_rubbish = False

    def look(self, worker_id: str, trust: Trust, parity: ParityState, place: str) -> None:
        """One more look at it. `place`: where its events are looked for."""
        if line := self._news(trust, parity, place):
            _logger.warning("worker %s: %s", worker_id, line)
        elif self._told and trust.level is TrustLevel.EXACT and not parity.warning:
            self._told.clear()
            _logger.info("worker %s: its index is exact again", worker_id)
        self._doubt = trust

    def look_at_messages(self, worker_id: str, stats: FeedStats, place: str) -> None:
        """Most of them may be unreadable and the index exact all the same: the others may have no gap."""
        num_unreadable = sum(stats.ignored[reason] for reason in _UNREADABLE)
        num_others = stats.num_messages - stats.ignored[MALFORMED_PAYLOAD]
        if self._has_told_of_rubbish or num_unreadable < max(RUBBISH_MESSAGES, num_others + 1):
            return
        self._has_told_of_rubbish = True
        reasons = ", ".join(reason for reason in _UNREADABLE if stats.ignored[reason])
        _logger.warning(
            "worker %s: most of what comes from %s can't be read (%d messages: %s): does something else "
            "publish there?",
            worker_id, place, num_unreadable, reasons,
        )  # fmt: skip

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
