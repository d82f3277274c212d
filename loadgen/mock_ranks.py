"""The data-parallel ranks of a mock worker: an engine each, with its own cache and its own event sockets.

Which of them serves a request is decided here; what they answer is in `mock_http`.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

import zmq

from indexer.events import KvEvent
from loadgen.engine import EngineSettings
from loadgen.mock_api import ApiError
from loadgen.mock_driver import RealTimeDriver
from loadgen.mock_events import EventPublisher
from loadgen.token_engine import TokenEngine
from loadgen.transfer import Port
from loadgen.wire import RELEASES, Layout, encode_batch
from loadgen.wire_sglang import TreeEvents
from router.tasks import start_task

FIRST_PORTS = range(20_000, 32_000)
"""Where ports in a row are looked for: below those that Linux gives to connections, where few neighbours
are free after thousands of them."""
PORT_SEARCHES = 100
"""Mostly the first find them."""


class MockRank:
    """One engine while its process lives: numbers of events start at 0, the cache is empty."""

    def __init__(
        self,
        number: int,
        settings: EngineSettings,
        *,
        layout: Layout,
        topic: str,
        context: zmq.Context[zmq.Socket[bytes]],
        wall_seconds: Callable[[], float],
    ) -> None:
        """`wall_seconds`: Unix seconds, for the time of messages."""
        self.number = number
        self.port = Port()
        self.num_in_passage = 0
        """Requests whose KV is awaited, or on its way to another engine."""
        self.publisher = EventPublisher(context, layout=layout, topic=topic.encode())
        self.driver = RealTimeDriver(TokenEngine(settings), self.publish)
        self._layout = layout
        self._wall_seconds = wall_seconds
        self._tree = TreeEvents() if RELEASES[layout].engine == "sglang" else None
        self._driving: asyncio.Task[None] | None = None
        self._is_stopped = False

    @property
    def model(self) -> TokenEngine:
        return self.driver.model

    @property
    def num_active(self) -> int:
        return self.model.num_running + self.model.num_waiting + self.num_in_passage

    @property
    def num_messages(self) -> int:
        """Published so far; the next one has this number."""
        return self.publisher.next_sequence

    @contextlib.contextmanager
    def in_passage(self) -> Iterator[None]:
        """A request that is with this worker and not with its engine."""
        self.num_in_passage += 1
        try:
            yield
        finally:
            self.num_in_passage -= 1

    def stats(self) -> dict[str, float]:
        return {
            "active_requests": self.num_active,
            "held_prompts": self.model.num_held,
            "event_messages": self.num_messages,
            "dropped_event_messages": self.publisher.num_dropped,
            "cached_blocks": self.model.pool.num_cached,
            "lag_seconds_mean": self.driver.lag_seconds_mean,
            "lag_seconds_max": self.driver.lag_seconds_max,
            **asdict(self.model.counters),
        }

    async def start(self, endpoint: str, replay_endpoint: str) -> None:
        """Publishes there from now on."""
        await self.publisher.bind(endpoint, replay_endpoint)
        self._driving = start_task(self.driver.run(), f"mock-rank-{self.number}")

    async def stop(self) -> None:
        """Again: no effect."""
        if self._is_stopped:
            return
        self._is_stopped = True
        if self._driving is not None:
            self._driving.cancel()
            await asyncio.wait([self._driving])
        await self.publisher.close()

    def publish(self, events: Sequence[KvEvent]) -> None:
        """Sends the next event message; the driver does it after each step that has events."""
        told = events if self._tree is None else self._tree.of(events)
        if told:
            self.publisher.publish(
                encode_batch(told, timestamp=self._wall_seconds(), dp_rank=self.number, layout=self._layout)
            )


def rank_named(ranks: Sequence[MockRank], text: str) -> MockRank | None:
    """The one that a header names; None for what is no number. Raises ApiError when there is none of it."""
    if not text.isascii() or not text.isdigit():
        return None
    if int(text) >= len(ranks):
        raise ApiError(400, f"data_parallel_rank {text} is out of range [0, {len(ranks)}).")
    return ranks[int(text)]


def busy_least(ranks: Sequence[MockRank], turn: int) -> MockRank:
    """As engines balance themselves: the fewest requests, in turn where that says nothing."""
    return min(ranks, key=lambda rank: (rank.num_active, (rank.number - turn) % len(ranks)))


def find_free_ports(host: str, count: int) -> int:
    """The first of so many free ports in a row. Raises OSError."""
    for _ in range(PORT_SEARCHES):
        first = FIRST_PORTS[secrets.randbelow(len(FIRST_PORTS) - count)]
        if _are_free(host, range(first, first + count)):
            return first
    raise OSError(f"no {count} free ports in a row on {host}")


def _are_free(host: str, ports: range) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    held: list[socket.socket] = []
    try:
        for port in ports:
            held.append(socket.socket(family))
            held[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as ZMQ binds too
            held[-1].bind((host, port))
    except OSError:
        return False
    finally:
        for each in held:
            each.close()
    return True
