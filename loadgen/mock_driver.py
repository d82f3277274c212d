"""Drives one TokenEngine in real time: sleeps to the end of each step and hands the tokens out.

The model's time is its own. A step that ends late does not delay the next one: that starts when the last one
should have ended, so the mock stays as fast as its curve as long as the machine can follow. How late it was
is measured.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Protocol

from indexer.events import KvEvent
from loadgen.sequences import TokenSequence
from loadgen.token_engine import TokenEngine

CATCH_UP_SECONDS_MAX = 1.0
"""Further behind than this (a suspended process, a fault), the model's time jumps forward instead."""


class TokenSink(Protocol):
    """Where a sequence's tokens go. Called within a step: must be quick and must not raise."""

    def token(self, sequence: TokenSequence) -> None: ...


class RealTimeDriver:
    """One task per worker runs `run`; `submit` and `abort` are called from the same event loop."""

    def __init__(self, model: TokenEngine, publish: Callable[[Sequence[KvEvent]], None]) -> None:
        self.model = model
        self.lag_seconds_max = 0.0
        self._lag_seconds_total = 0.0
        self._publish = publish
        self._sinks: dict[TokenSequence, TokenSink] = {}
        self._wake = asyncio.Event()
        self._unpaused = asyncio.Event()
        self._unpaused.set()

    @property
    def lag_seconds_mean(self) -> float:
        """Mean over all steps of how late a step's tokens were handed out."""
        return self._lag_seconds_total / max(1, self.model.counters.steps)

    def submit(self, sequence: TokenSequence, sink: TokenSink) -> None:
        """Queues it."""
        self.model.enqueue(sequence)
        self._sinks[sequence] = sink
        self._wake.set()

    def abort(self, sequence: TokenSequence) -> None:
        self._sinks.pop(sequence, None)
        self.model.abort(sequence)

    def pause(self) -> None:
        self._unpaused.clear()

    def resume(self) -> None:
        self._unpaused.set()

    async def run(self) -> None:
        """Until cancelled."""
        now = perf_counter()  # uvloop's own clock counts whole milliseconds
        while True:
            await self._unpaused.wait()
            ends_at = self.model.start_step(now)
            if ends_at is None:
                self._wake.clear()
                await self._wake.wait()
                now = perf_counter()
                continue
            await asyncio.sleep(max(0.0, ends_at - perf_counter()))
            lag = max(0.0, perf_counter() - ends_at)
            now = ends_at if lag < CATCH_UP_SECONDS_MAX else perf_counter()
            self._lag_seconds_total += lag
            self.lag_seconds_max = max(self.lag_seconds_max, lag)
            self._finish_step()

    def _finish_step(self) -> None:
        output = self.model.finish_step()
        if output.events:
            self._publish(output.events)
        for sequence in output.advanced:
            sink = self._sinks.get(sequence)
            if sink is not None:
                sink.token(sequence)
                if sequence.finished:
                    self._sinks.pop(sequence, None)
