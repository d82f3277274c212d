"""Between the sockets of a worker's KV events and the feed: messages in, requests for replay out. I/O.

What a message means is decided by the feed; how it arrives, by `subscriber`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Iterable

import zmq

from indexer.blocks import Layout
from indexer.feed import KvFeed, RequestReplay
from indexer.limits import REFUSED_SECONDS
from indexer.radix import Slot
from indexer.snapshot import PublisherSnapshot, SnapshotError
from indexer.subscriber import KvSubscriber

_logger = logging.getLogger("kvgate.index")


class Subscription:
    """One publisher's stream, carried into the feed under the worker's slot. `on_layout` is called whenever
    events have shown how the worker cuts its blocks. A `snapshot` is loaded before the socket opens.

    `on_refusal` is told why the endpoint can't be opened, and "" once it is; until then it is tried again at
    intervals.
    """

    def __init__(
        self,
        feed: KvFeed,
        slot: Slot,
        *,
        endpoint: str,
        replay_endpoint: str | None,
        topic: str,
        context: zmq.Context[zmq.Socket[bytes]],
        on_layout: Callable[[], None],
        on_refusal: Callable[[str], None],
        snapshot: PublisherSnapshot | None = None,
    ) -> None:
        self.slot = slot
        self._feed = feed
        self._on_layout = on_layout
        self._on_refusal = on_refusal
        self._layout: Layout | None = None
        self._endpoint = endpoint
        self._loading = None if snapshot is None else feed.restore(slot, snapshot)
        self._next: asyncio.Handle | None = None
        self._subscriber = KvSubscriber(endpoint, replay_endpoint, self, context=context, topic=topic)

    def start(self) -> None:
        if self._loading is None:
            self._open()
        else:
            self._load(self._loading)

    def stop(self) -> None:
        if self._next is not None:
            self._next.cancel()
        if self._loading is not None:
            self._loading.close()
        self._subscriber.stop()

    def _load(self, loading: Generator[None, None, None]) -> None:
        """A piece of the snapshot, then whatever else the event loop has to do."""
        try:
            for _ in loading:
                self._next = asyncio.get_running_loop().call_soon(self._load, loading)
                return
        except SnapshotError as error:
            _logger.warning("what a snapshot has of %s is left out: %s", self._endpoint, error)
        self._open()

    def _open(self) -> None:
        try:
            self._subscriber.start()
        except zmq.ZMQError as error:
            self._next = asyncio.get_running_loop().call_later(REFUSED_SECONDS, self._open)
            self._on_refusal(f"can't listen to {self._endpoint!r}: {zmq.strerror(error.errno or 0)}")
        else:
            self._on_refusal("")  # a former subscription's may have been refused

    # What the subscriber calls

    def on_message(self, sequence: int, payload: bytes) -> None:
        self._obey(self._feed.receive(self.slot, sequence, payload))
        self._look_at_layout()

    def on_replay_message(self, sequence: int, payload: bytes) -> None:
        self._obey(self._feed.receive_replay(self.slot, sequence, payload))
        self._look_at_layout()

    def on_replay_end(self) -> None:
        self._obey(self._feed.replay_ended(self.slot))

    def on_replay_failed(self, reason: str) -> None:
        self._obey(self._feed.replay_failed(self.slot, reason))

    def on_connected(self) -> None:
        self._obey(self._feed.connected(self.slot))

    def on_disconnected(self) -> None:
        self._feed.disconnected(self.slot)

    def on_malformed(self, reason: str) -> None:
        self._feed.malformed(self.slot, reason)

    def _look_at_layout(self) -> None:
        layout = self._feed.layout(self.slot)
        if layout is not self._layout:
            self._layout = layout
            self._on_layout()

    def _obey(self, commands: Iterable[RequestReplay]) -> None:
        for command in commands:
            self._subscriber.request_replay(command.from_sequence)
