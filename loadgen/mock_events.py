"""A mock worker's event sockets: PUB for the live stream, ROUTER for replay, with vLLM's numbering and
buffer."""

from __future__ import annotations

import asyncio
from collections import deque

import zmq
import zmq.asyncio

from loadgen.wire import Layout, encode_sequence, end_of_replay_frames, replay_frames
from router.tasks import start_task

REPLAY_BUFFER_BATCHES = 10_000
"""vLLM's `buffer_steps`: how many batches a replay can reach back."""
PUB_HIGH_WATER_MARK = 100_000
"""vLLM's `hwm`; beyond it a slow subscriber loses messages."""
REBIND_INTERVAL_SECONDS = 0.005
REBIND_ATTEMPTS = 400
"""A closed socket's port is free only after libzmq's own thread let go of it."""


class EventPublisher:
    """One incarnation of an engine's publisher: numbers start at 0."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], *, layout: Layout, topic: bytes) -> None:
        self.num_dropped = 0
        """Messages that were numbered and buffered, but not sent."""
        self.drops_left: int | None = 0
        """How many further messages are to be lost; None: all."""
        self._layout = layout
        self._topic = topic
        self._next_sequence = 0
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=REPLAY_BUFFER_BATCHES)
        self._pub = context.socket(zmq.PUB)
        self._pub.set_hwm(PUB_HIGH_WATER_MARK)
        self._router = zmq.asyncio.Socket(context, zmq.ROUTER)
        self._router.set(
            zmq.SNDHWM, 0
        )  # a replay is longer than the default mark, and ROUTER drops beyond it
        self._serving: asyncio.Task[None] | None = None

    @property
    def next_sequence(self) -> int:
        return self._next_sequence

    async def bind(self, endpoint: str, replay_endpoint: str) -> tuple[str, str]:
        """Binds both sockets; returns their endpoints, with real ports where the given ones end in `:*`."""
        bound = await _bind(self._pub, endpoint), await _bind(self._router, replay_endpoint)
        self._serving = start_task(self._serve_replays(), "mock-replay")
        return bound

    def publish(self, payload: bytes) -> None:
        sequence = self._next_sequence
        self._next_sequence += 1
        self._buffer.append((sequence, payload))
        if self.drops_left is None or self.drops_left > 0:
            self.num_dropped += 1
            self.drops_left = None if self.drops_left is None else self.drops_left - 1
            return
        self._pub.send_multipart([self._topic, encode_sequence(sequence), payload], zmq.NOBLOCK)

    async def close(self) -> None:
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait([self._serving])
        self._pub.close(linger=0)
        self._router.close(linger=0)

    async def _serve_replays(self) -> None:
        while True:
            frames = await self._router.recv_multipart()
            # As in vLLM, a request without the empty frame is dropped silently.
            if len(frames) == 3 and not frames[1]:
                await self._replay(frames[0], int.from_bytes(frames[2], "big"))

    async def _replay(self, identity: bytes, start: int) -> None:
        for sequence, payload in list(self._buffer):
            if sequence >= start:
                answer = replay_frames(self._topic, encode_sequence(sequence), payload, self._layout)
                await self._router.send_multipart([identity, *answer])
        await self._router.send_multipart([identity, *end_of_replay_frames(self._layout)])


async def _bind(socket: zmq.Socket[bytes] | zmq.asyncio.Socket, endpoint: str) -> str:
    for attempts_left in reversed(range(REBIND_ATTEMPTS)):
        try:
            socket.bind(endpoint)
            break
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE or not attempts_left:
                raise
        await asyncio.sleep(REBIND_INTERVAL_SECONDS)
    return socket.get_string(zmq.LAST_ENDPOINT)
