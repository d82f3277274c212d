"""The order of one publisher's messages: what to apply, what to drop, when to ask for a replay, what to
forget.

Messages carry consecutive numbers that begin at 0 in every engine process. The sequencer decides by a table;
it holds no blocks, decodes nothing and sends nothing. It answers every input with steps that its owner
carries out in their order.

The rule behind the table: a message that was not seen may have removed any block. So what was learnt before
it counts only once the missing messages were replayed; where that is impossible, it is forgotten, and what
follows is sound again, because a removal that was missed can then name nothing that is still claimed.

An engine that restarts begins at 0. It shows as a reconnect after which the publisher's last message is
another one than we had, or as a number that we had seen before with other content or a later time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from indexer.limits import BUFFERED_BYTES, BUFFERED_MESSAGES, DIGESTS, LATE_MESSAGES, REPLAY_ATTEMPTS

NO_CONTACT = "no contact with the event socket yet"


class Message(NamedTuple):
    """One batch as it came. `timestamp` is the publisher's clock, Unix seconds."""

    sequence: int
    payload: bytes
    timestamp: float


class Position(NamedTuple):
    """The last message applied: its number, its digest, the newest timestamp, and what is not known of the
    time before."""

    sequence: int
    digest: int
    timestamp: float
    missing_history: str


class Apply(NamedTuple):
    """Step: apply this message's events."""

    message: Message


class Forget(NamedTuple):
    """Step: drop everything learnt from this publisher."""

    reason: str


class Ask(NamedTuple):
    """Step: end any replay that still runs and ask for one from this number on."""

    from_sequence: int


Step = Apply | Forget | Ask


class State(Enum):
    """START: nothing known, any message may begin. FOLLOWING: the next number is known. REPLAYING: filling a
    gap."""

    START = auto()
    FOLLOWING = auto()
    REPLAYING = auto()


class Relation(Enum):
    """A live message against what was seen."""

    FIRST = auto()
    NEXT = auto()
    GAP = auto()
    REPEATED = auto()
    LATE = auto()
    RESTART = auto()


class Rule(Enum):
    """What a live message does."""

    APPLY = auto()
    DROP = auto()
    REPLAY_MISSING = auto()
    REPLAY_ALL = auto()
    BEGIN_HERE = auto()


_RULES: dict[Relation, tuple[Rule, Rule]] = {
    #                   can ask for a replay   can not
    Relation.FIRST:    (Rule.REPLAY_ALL,      Rule.BEGIN_HERE),
    Relation.NEXT:     (Rule.APPLY,           Rule.APPLY),
    Relation.GAP:      (Rule.REPLAY_MISSING,  Rule.BEGIN_HERE),
    Relation.REPEATED: (Rule.DROP,            Rule.DROP),
    Relation.LATE:     (Rule.DROP,            Rule.DROP),
    Relation.RESTART:  (Rule.REPLAY_ALL,      Rule.BEGIN_HERE),
}  # fmt: skip


@dataclass(slots=True)
class SequencerStats:
    """Plain counters since the publisher was added."""

    num_gaps: int = 0
    num_replays: int = 0
    num_restarts: int = 0


class Sequencer:
    """The position in one publisher's stream."""

    def __init__(self, *, can_replay: bool) -> None:
        self.stats = SequencerStats()
        self.state = State.START
        self.last_sequence: int | None = None
        """The last message applied; -1 when it is known that none was published yet; None in START."""
        self._can_replay = can_replay
        self._is_lost = False  # the connection to the event socket
        self._doubt = NO_CONTACT
        self._missing_history = ""
        self._num_attempts = 0
        self._digests: deque[int] = deque(maxlen=DIGESTS)  # up to the last message, without a hole
        self._newest_timestamp = 0.0
        self._num_late = 0  # in a row
        self._replay_from = 0
        self._verifying = False
        self._buffer: deque[Message] = deque()
        self._buffered_bytes = 0

    @property
    def doubt(self) -> str:
        """In words, why what was learnt may not be believed now; empty when it may."""
        return "the connection to the event socket is lost" if self._is_lost else self._doubt

    @property
    def next_sequence(self) -> int:
        """The number that the next message should have."""
        return 0 if self.last_sequence is None else self.last_sequence + 1

    @property
    def missing_history(self) -> str:
        """In words, what of the publisher's history is unknown: blocks that it holds and we do not claim."""
        return self._missing_history

    @property
    def position(self) -> Position | None:
        """Where in the stream we are; None before the first message."""
        if self.last_sequence is None or not self._digests:
            return None
        return Position(self.last_sequence, self._digests[-1], self._newest_timestamp, self._missing_history)

    def resume(self, position: Position) -> None:
        """Go on from what was known at another time. The engine must show first that it is still the one;
        until then nothing counts, and what comes is held back."""
        self.state = State.REPLAYING
        self.last_sequence = self._replay_from = position.sequence
        self._doubt = "what was loaded is not compared with the engine yet"
        self._missing_history = position.missing_history
        self._newest_timestamp = position.timestamp
        self._verifying = True
        self._digests.append(position.digest)

    # What the shell reports.

    def connected(self) -> list[Step]:
        """The event socket has a connection: the first, or a new one, after which nothing is certain."""
        self._is_lost = False
        self._num_attempts = 0
        self._empty_buffer()  # what was held back may be another process's; the replay has it if not
        if not self._can_replay:
            return self._begin_anew("the history before the connection is unknown: no replay socket")
        if self.last_sequence is None or self.last_sequence < 0:
            return self._ask(0, "first contact: replaying what the engine still has")
        return self._ask(self.last_sequence, "reconnected: is it the same engine process?", verifying=True)

    def disconnected(self) -> list[Step]:
        """The connection is lost: what the engine removes meanwhile is not heard."""
        self._is_lost = True
        return []

    def live(self, message: Message) -> list[Step]:
        """A published message."""
        if self.state is State.REPLAYING:
            self._hold_back(message)
            return []
        relation = self._relation(message)
        may_ask = self._can_replay and self._num_attempts < REPLAY_ATTEMPTS
        rule = _RULES[relation][0 if may_ask else 1]
        self.stats.num_gaps += relation is Relation.GAP
        self.stats.num_restarts += relation is Relation.RESTART
        return self._follow(rule, relation, message)

    def replayed(self, message: Message) -> list[Step]:
        """A message of the replay that was asked for last."""
        if self.state is not State.REPLAYING or message.sequence < self._replay_from:
            return []
        if self._verifying:
            return self._verify(message)
        if message.sequence < self.next_sequence:
            return []
        steps: list[Step] = []
        if message.sequence > self.next_sequence:
            doubt = self._doubt
            steps = self._begin_anew(f"the engine no longer has what came before message {message.sequence}")
            self.state, self._doubt = State.REPLAYING, doubt
        self._advance(message)
        return [*steps, Apply(message)]

    def replay_ended(self) -> list[Step]:
        """The end marker of the replay."""
        if self.state is not State.REPLAYING:
            return []
        if self._verifying:  # the engine has not even the message that we saw last
            return self._other_process()
        if self.last_sequence is None:
            self.last_sequence = -1  # nothing was published yet: the next message is number 0
        return self._release_buffer()

    def replay_failed(self, reason: str) -> list[Step]:
        """The replay broke off, or its end marker never came."""
        if self.state is not State.REPLAYING:
            return []
        if self._num_attempts < REPLAY_ATTEMPTS:
            return self._ask(
                self._replay_from, f"replay failed ({reason}), asked again", verifying=self._verifying
            )
        steps = self._begin_anew(f"history lost: replay failed ({reason})")
        return steps + self._release_buffer()

    # The rules.

    def _relation(self, message: Message) -> Relation:
        last = self.last_sequence
        if last is None:
            return Relation.FIRST if message.sequence else Relation.NEXT
        if message.sequence == last + 1:
            return Relation.NEXT
        if message.sequence > last:
            return Relation.GAP
        age = last - message.sequence
        if age < len(self._digests):
            is_same = self._digests[-1 - age] == xxh3_64_intdigest(message.payload)
            return Relation.REPEATED if is_same else Relation.RESTART
        if message.timestamp > self._newest_timestamp:
            return Relation.RESTART
        # A transport delays a few messages; many in a row below our position mean that the position is wrong.
        self._num_late += 1
        return Relation.RESTART if self._num_late > LATE_MESSAGES else Relation.LATE

    def _follow(self, rule: Rule, relation: Relation, message: Message) -> list[Step]:
        if rule is Rule.APPLY:
            self._advance(message)
            return [Apply(message)]
        if rule is Rule.DROP:
            return []
        if rule is Rule.BEGIN_HERE:
            steps = self._begin_anew(f"the history before message {message.sequence} is unknown")
            self._advance(message)
            return [*steps, Apply(message)]
        steps = self._begin_anew("another engine process") if relation is Relation.RESTART else []
        start = self.next_sequence
        steps += self._ask(start, f"messages {start} to {message.sequence - 1} were missed")
        self._hold_back(message)
        return steps

    def _advance(self, message: Message) -> None:
        if self.state is not State.REPLAYING:
            self.state = State.FOLLOWING
            self._doubt = ""
            self._num_attempts = 0
        if message.sequence == 0:
            self._missing_history = ""
        self.last_sequence = message.sequence
        self._digests.append(xxh3_64_intdigest(message.payload))
        self._newest_timestamp = max(self._newest_timestamp, message.timestamp)
        self._num_late = 0

    def _begin_anew(self, reason: str) -> list[Step]:
        self.state = State.START
        self._doubt = ""  # nothing is claimed, so nothing claimed is in doubt
        self._missing_history = reason
        self.last_sequence = None
        self._verifying = False
        self._digests.clear()
        return [Forget(reason)]

    def _ask(self, from_sequence: int, reason: str, *, verifying: bool = False) -> list[Step]:
        self.state = State.REPLAYING
        self._doubt = reason
        self.stats.num_replays += 1
        self._num_attempts += 1
        self._replay_from = from_sequence
        self._verifying = verifying
        return [Ask(from_sequence)]

    def _verify(self, message: Message) -> list[Step]:
        is_same = message.sequence == self.last_sequence and (
            self._digests[-1] == xxh3_64_intdigest(message.payload)
        )
        if not is_same:
            return self._other_process()
        self._verifying = False
        return []

    def _other_process(self) -> list[Step]:
        self.stats.num_restarts += 1
        return self._begin_anew("another engine process") + self._ask(0, "another engine process: replaying")

    # Live messages that came while a replay ran.

    def _hold_back(self, message: Message) -> None:
        full = len(self._buffer) >= BUFFERED_MESSAGES
        if full or self._buffered_bytes + len(message.payload) > BUFFERED_BYTES:
            self._empty_buffer()  # the next replay fills this hole too
        self._buffer.append(message)
        self._buffered_bytes += len(message.payload)

    def _empty_buffer(self) -> None:
        self._buffer.clear()
        self._buffered_bytes = 0

    def _release_buffer(self) -> list[Step]:
        self.state = State.START if self.last_sequence is None else State.FOLLOWING
        self._doubt = ""
        held, self._buffer = self._buffer, deque()
        self._buffered_bytes = 0
        steps: list[Step] = []
        for message in held:
            steps += self.live(message)
        return steps
