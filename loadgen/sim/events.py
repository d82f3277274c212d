"""The way of KV-event messages from simulated workers to the core: delay, loss, and replays of what was lost.

Messages are handed in when the next decision asks for what has arrived by then, in the order of arrival.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from heapq import heappop, heappush

from indexer.feed import KvFeed, RequestReplay
from loadgen.sim.worker import Published, SimWorker
from policies.types import Slot

_Arrival = tuple[float, int, Slot, int, int, Published | None]
"""When, in which order, from which worker and which process of it; the replay that it belongs to, 0 for a
live message; the message, or None for a replay's end marker. A bare tuple: there are several a request."""


class EventChannel:
    """All workers' event sockets."""

    def __init__(self, feed: KvFeed, *, delay: float, loss: float, rng: random.Random) -> None:
        """`delay`: seconds of a message's way, in either direction; `loss`: share of live messages lost."""
        self._feed = feed
        self._delay = delay
        self._loss = loss
        self._rng = rng
        self._workers: dict[Slot, SimWorker] = {}
        self._arrivals: list[_Arrival] = []
        self._num_sent = 0
        self._replays: dict[Slot, int] = {}  # the one that each worker was asked for last
        self.num_lost = 0

    def connect(self, worker: SimWorker, now: float) -> None:
        """To a worker's publisher, for the first time or after it came back."""
        self._workers[worker.slot] = worker
        self._carry_out(self._feed.connected(worker.slot), now)

    def disconnect(self, worker: SimWorker) -> None:
        """What is under way is lost with the connection."""
        del self._workers[worker.slot]
        self._feed.disconnected(worker.slot)

    def send(self, worker: SimWorker, message: Published) -> None:
        if self._loss and self._rng.random() < self._loss:
            self.num_lost += 1
            return
        self._send(message.at + self._delay, worker.slot, 0, message)

    def deliver(self, now: float) -> None:
        """Hands in what has arrived by now."""
        arrivals, workers = self._arrivals, self._workers
        while arrivals and arrivals[0][0] <= now:
            at, _order, slot, incarnation, replay, message = heappop(arrivals)
            worker = workers.get(slot)
            if worker is None or worker.incarnation != incarnation:
                continue
            if commands := self._hand_in(slot, replay, message):
                self._carry_out(commands, at)

    def _hand_in(self, slot: Slot, replay: int, message: Published | None) -> Sequence[RequestReplay]:
        if not replay and message:
            return self._feed.receive(slot, message.sequence, message.payload)
        if replay != self._replays[slot]:
            return ()  # a later one has taken its place
        if message is None:
            return self._feed.replay_ended(slot)
        return self._feed.receive_replay(slot, message.sequence, message.payload)

    def _carry_out(self, commands: Sequence[RequestReplay], now: float) -> None:
        for command in commands:
            slot = command.slot
            replay = self._replays[slot] = self._replays.get(slot, 0) + 1
            asked_at = now + self._delay
            for message in self._workers[slot].sent_between(command.from_sequence, asked_at):
                self._send(asked_at + self._delay, slot, replay, message)
            self._send(asked_at + self._delay, slot, replay, None)

    def _send(self, at: float, slot: Slot, replay: int, message: Published | None) -> None:
        self._num_sent += 1
        incarnation = self._workers[slot].incarnation
        heappush(self._arrivals, (at, self._num_sent, slot, incarnation, replay, message))
