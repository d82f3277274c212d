"""Whether workers store the blocks of the prompts that they are sent, and cache what was expected of them.

Of each worker at most one prompt is followed at a time, from its dispatch until its blocks have been told of
or should have been; once they agree, only now and then. What the findings mean is said in `indexer.parity`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from indexer.blocks import BlockHash, HashSpace
from indexer.feed import KvFeed
from indexer.feed_stats import FeedStats
from indexer.limits import PARITY_SUBJECTS
from indexer.parity import (
    Check,
    MissingBlocks,
    Outcome,
    ParityState,
    Subject,
    cause_of_blocks,
    cause_of_cached,
)
from indexer.trust import Verdict
from policies.types import Slot, Worker
from router.core.limits import PARITY_PATIENCE_SECONDS, PARITY_SAMPLE_SECONDS
from router.core.loads import Booking
from router.core.prompt import Prompt
from router.core.usage import lacks_last_block


@dataclass(frozen=True, slots=True)
class _Told:
    """How much a publisher had told by some moment."""

    num_messages: int
    num_blocks_stored: int
    num_orphans: int
    num_blocks_removed: int
    num_anew: int
    """Clears and restarts."""

    @classmethod
    def of(cls, stats: FeedStats) -> _Told:
        return cls(
            stats.num_messages,
            stats.num_blocks_stored,
            stats.num_orphans,
            stats.num_blocks_removed,
            stats.num_clears + stats.num_restarts,
        )


@dataclass(slots=True, eq=False)
class _Followed:
    """A prompt whose blocks are awaited. `reported_tokens`: cached by its engine's word. `ended_at`: None
    until its answer was complete."""

    booking: Booking
    cache_salt: str
    before: _Told
    reported_tokens: int | None = None
    ended_at: float | None = None


@dataclass(slots=True, eq=False)
class _Watch:
    """One worker. `due_at`: by subject, when to follow a prompt again."""

    worker: Worker
    space: HashSpace
    state: ParityState = field(default_factory=ParityState)
    followed: _Followed | None = None
    due_at: dict[Subject, float] = field(default_factory=dict)
    num_restarts: int = 0


class ParityChecks:
    """The findings about every worker that publishes events; those about others are of their tokens alone."""

    def __init__(self, feed: KvFeed) -> None:
        self._feed = feed
        self._watches: dict[Slot, _Watch] = {}
        self._open: set[Slot] = set()
        """Workers of which a prompt is followed, or that are disbelieved."""

    def add(self, slot: Slot, worker: Worker, space: HashSpace) -> None:
        self._watches[slot] = _Watch(worker, space)

    def remove(self, slot: Slot) -> None:
        self._watches.pop(slot, None)
        self._open.discard(slot)

    def state(self, slot: Slot) -> ParityState:
        return self._watches[slot].state

    def moved(self, slot: Slot, space: HashSpace) -> None:
        """Prompts are cut otherwise for it from now on."""
        watch = self._watches[slot]
        watch.space = space
        self._stop_following(slot, watch)

    def restarted(self, slot: Slot) -> None:
        """Another engine process: what was found of the former one says nothing of it."""
        watch = self._watches[slot]
        watch.state = ParityState()
        watch.due_at.clear()
        self._stop_following(slot, watch)
        self._feed.disbelieve(slot, "")

    # What befalls a request

    def dispatched(self, booking: Booking, prompt: Prompt, *, now: float) -> None:
        """The request was sent to its worker."""
        watch, expectation = self._watches[booking.slot], booking.expectation
        if watch.followed is not None or not expectation.is_exact:
            return
        if expectation.exact_blocks >= len(expectation.chain):
            return  # nothing of it will be stored anew
        if now < watch.due_at.get(expectation.subject, now) or not self._feed.is_sound(booking.slot):
            return
        before = _Told.of(self._feed.stats(booking.slot))
        watch.followed = _Followed(booking, prompt.cache_salt, before)
        self._open.add(booking.slot)
        self._feed.sample_roots(booking.slot, True)

    def reported(self, booking: Booking, cached_tokens: int, *, was_alone: bool) -> None:
        """The engine has said how much of an exact prompt was cached."""
        slot, expectation = booking.slot, booking.expectation
        watch = self._watches[slot]
        if watch.followed is not None and watch.followed.booking is booking:
            watch.followed.reported_tokens = cached_tokens
        expected, note = expectation.cached_tokens, ""
        if expected == cached_tokens:
            # That nothing was cached where nothing was expected is so whatever the hashes are.
            outcome = Outcome.AGREES if expected else Outcome.SKIPPED
        elif (
            not was_alone
            or self._feed.num_losses(slot) != expectation.num_losses
            or (cached_tokens > expected and self._may_hold_more(slot))
        ):
            outcome = Outcome.SKIPPED
        elif lacks_last_block(expected, cached_tokens, watch.space.block_tokens):
            outcome, note = Outcome.SKIPPED, "one block less than expected, as with speculative decoding"
        else:
            tokens_note = watch.state.worst(Check.TOKENS)
            outcome, note = Outcome.DIFFERS, cause_of_cached(expected, cached_tokens, tokens_note)
        watch.state.note(Check.CACHED, expectation.subject, outcome, note)

    def _may_hold_more(self, slot: Slot) -> bool:
        """Whether there is a reason for the index to know less than it holds: events came before us, or what
        they told did not fit."""
        return bool(self._feed.missing_history(slot) or self._feed.stats(slot).num_blocks_dropped)

    def not_reported(self, booking: Booking) -> None:
        """The engine's usage has no cached tokens, and never had."""
        why = "the engine reports no cached tokens (vLLM: --enable-prompt-tokens-details)"
        state = self._watches[booking.slot].state
        state.note(Check.CACHED, booking.expectation.subject, Outcome.SKIPPED, why)

    def ended(self, booking: Booking, *, is_computed: bool, now: float) -> None:
        """The attempt is over."""
        watch = self._watches[booking.slot]
        if watch.followed is None or watch.followed.booking is not booking:
            return
        if is_computed:
            watch.followed.ended_at = now
        else:
            self._stop_following(booking.slot, watch)

    # Conclusions

    def conclude(self, *, now: float) -> float | None:
        """Look whether awaited blocks have come; returns when to look again at the latest."""
        if not self._open:
            return None
        deadlines = []
        for slot in tuple(self._open):
            watch = self._watches[slot]
            self._look_for_restart(slot, watch)
            if watch.followed is not None and self._look(slot, watch, watch.followed, now):
                self._stop_following(slot, watch)
                self._feed.disbelieve(slot, watch.state.disbelief)
            if watch.followed is not None and watch.followed.ended_at is not None:
                deadlines.append(watch.followed.ended_at + PARITY_PATIENCE_SECONDS)
            if watch.followed is None and not watch.state.disbelief:
                self._open.discard(slot)
        return min(deadlines, default=None)

    def _look_for_restart(self, slot: Slot, watch: _Watch) -> None:
        """Of which the events alone may tell."""
        num_restarts = self._feed.stats(slot).num_restarts
        if num_restarts != watch.num_restarts:
            watch.num_restarts = num_restarts
            watch.state.forget_blocks()
            watch.due_at.clear()
            self._stop_following(slot, watch)
            self._feed.disbelieve(slot, "")

    def _stop_following(self, slot: Slot, watch: _Watch) -> None:
        watch.followed = None
        self._feed.sample_roots(slot, False)

    def _look(self, slot: Slot, watch: _Watch, followed: _Followed, now: float) -> bool:
        """Whether something follows by now, be it that nothing does."""
        expectation, state = followed.booking.expectation, watch.state
        subject, awaited = expectation.subject, self._awaited(watch, followed)
        if awaited is not None and self._feed.holds(slot, awaited):
            state.note(Check.BLOCKS, subject, Outcome.AGREES)
            if state.finding(Check.BLOCKS, subject).evidence.is_settled:
                if len(watch.due_at) >= PARITY_SUBJECTS:
                    watch.due_at.clear()
                watch.due_at[subject] = now + PARITY_SAMPLE_SECONDS
            return True
        if followed.ended_at is None or now < followed.ended_at + PARITY_PATIENCE_SECONDS:
            return False
        stats = self._feed.stats(slot)
        if why := self._why_unclear(slot, watch, followed, stats):
            state.note(Check.BLOCKS, subject, Outcome.SKIPPED, why)
        else:
            cause = cause_of_blocks(self._missing(slot, watch, followed, stats))
            state.note(Check.BLOCKS, subject, Outcome.DIFFERS, cause)
        return True

    def _awaited(self, watch: _Watch, followed: _Followed) -> BlockHash | None:
        """The last block of the prompt, if its worker must have stored it for it. Its hash is chained through
        all before it, some of which a sliding window may have let go."""
        chain = followed.booking.expectation.chain
        return chain[-1] if self._num_held(watch, followed) < len(chain) else None

    def _num_held(self, watch: _Watch, followed: _Followed) -> int:
        """Blocks that the worker had before, by its events or by its engine's word."""
        reported_blocks = (followed.reported_tokens or 0) // watch.space.block_tokens
        return max(followed.booking.expectation.exact_blocks, reported_blocks)

    def _why_unclear(self, slot: Slot, watch: _Watch, followed: _Followed, stats: FeedStats) -> str:
        """Why blocks may be missing though all is well."""
        expectation, num_held = followed.booking.expectation, self._num_held(watch, followed)
        if num_held >= len(expectation.chain):
            return "all of its blocks were cached"
        before, told = followed.before, _Told.of(stats)
        num_removed = told.num_blocks_removed - before.num_blocks_removed
        # What was used last is evicted last: much else must have gone before a block of this prompt.
        was_evicted = num_removed and 2 * num_removed >= (watch.worker.num_blocks or stats.num_blocks)
        if not self._feed.is_sound(slot) or told.num_anew != before.num_anew or was_evicted:
            return "events were missed, or the cache was emptied meanwhile"
        if told.num_orphans > before.num_orphans:
            return "blocks came whose beginning is not known"
        if followed.reported_tokens is None and self._feed.missing_history(slot):
            return "what the engine had cached before is not known"
        return ""

    def _missing(self, slot: Slot, watch: _Watch, followed: _Followed, stats: FeedStats) -> MissingBlocks:
        expectation, worker, before = followed.booking.expectation, watch.worker, followed.before
        return MissingBlocks(
            subject=expectation.subject,
            space=watch.space,
            cache_salt=followed.cache_salt,
            first_hash=expectation.chain[0],
            engine=f"{worker.engine} {worker.version}".rstrip(),
            num_messages=stats.num_messages - before.num_messages,
            num_blocks_stored=stats.num_blocks_stored - before.num_blocks_stored,
            was_heard=before.num_messages > 0,
            others_agree=watch.state.agrees_somewhere(Check.BLOCKS),
            roots=self._feed.roots(slot),
            tokens_note=watch.state.worst(Check.TOKENS),
            tokens_agree=watch.state.agrees_somewhere(Check.TOKENS),
        )

    def may_learn(self, booking: Booking) -> bool:
        """Whether reports about such prompts may stand in for events that came before us. Where nobody has
        shown that the worker's events tell of the adapter or the salt, they could never be contradicted."""
        subject = booking.expectation.subject
        verdict = self._watches[booking.slot].state.verdict(Check.BLOCKS, subject)
        is_plain = not subject.adapter and not subject.is_salted
        return verdict is Verdict.AGREES or (is_plain and verdict is Verdict.OPEN)
