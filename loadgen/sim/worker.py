"""One simulated worker: an engine, and the publisher of its KV events with its replay buffer."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from indexer.events import KvEvent
from loadgen.engine import EngineModel, EngineSettings
from loadgen.sequences import EngineSequence
from loadgen.sim.wire import encode_events
from loadgen.transfer import Port
from policies.types import Role, Slot, WorkerId

REPLAY_BUFFER_MESSAGES = 10_000
"""As vLLM's publisher keeps."""


class Published(NamedTuple):
    """One message of a publisher."""

    at: float
    sequence: int
    payload: bytes


@dataclass(slots=True, eq=False)
class SimWorker:
    """`wakes`: how often the end of its step was set anew; what was announced before is void. `is_idle`: no
    step is in progress. `step_ends_at` is of the last one, or the run of steps."""

    id: WorkerId
    slot: Slot
    settings: EngineSettings
    rng: random.Random
    role: Role = Role.BOTH
    is_up: bool = True
    incarnation: int = 0
    wakes: int = 0
    is_idle: bool = True
    step_ends_at: float = 0.0
    engine: EngineModel = field(init=False)
    port: Port = field(init=False)
    """Through which it hands KV over, or receives it."""
    requests: dict[EngineSequence, int] = field(default_factory=dict)
    """Sequences under way, those whose KV is still being transferred here included, with the numbers of their
    requests."""
    busy_seconds: float = 0.0
    """Of engines that have died."""
    _sent: deque[Published] = field(init=False)
    _next_sequence: int = 0

    def __post_init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.engine = EngineModel(self.settings, self.rng)
        self.port = Port()
        self.is_idle = True
        self._sent = deque(maxlen=REPLAY_BUFFER_MESSAGES)
        self._next_sequence = 0

    def die(self) -> list[int]:
        """Returns the requests that it had."""
        lost = list(self.requests.values())
        self.requests.clear()
        self.busy_seconds += self.engine.counters.busy_seconds
        self.is_up = False
        self.wakes += 1
        self.engine.counters.busy_seconds = 0.0
        return lost

    def come_back(self) -> None:
        """As a new process: an empty cache, and messages numbered from 0."""
        self.incarnation += 1
        self.is_up = True
        self._begin()

    @property
    def total_busy_seconds(self) -> float:
        return self.busy_seconds + self.engine.counters.busy_seconds

    def publish(self, events: Sequence[KvEvent], now: float) -> Published:
        message = Published(now, self._next_sequence, encode_events(events, now))
        self._next_sequence += 1
        self._sent.append(message)
        return message

    def sent_between(self, first: int, until: float) -> list[Published]:
        """Messages from that number on that it had published by `until`, as far as it still has them."""
        if not self._sent:
            return []
        start = max(0, first - self._sent[0].sequence)
        return [message for message in islice(self._sent, start, None) if message.at <= until]
