"""A KV event publisher over real sockets, as vLLM runs one: PUB for live messages, ROUTER for replay."""

from __future__ import annotations

import asyncio

import zmq

from tests.support.waiting import eventually

END_MARKER = b"\xff" * 8


def number(sequence: int) -> bytes:
    return sequence.to_bytes(8, "big")


async def publisher_again(context: zmq.Context[zmq.Socket[bytes]], **endpoints: str) -> KvPublisher:
    """At the endpoints of one that was closed; ZMQ lets go of them a moment later."""
    made: list[KvPublisher] = []

    def is_bound() -> bool:
        try:
            made.append(KvPublisher(context, **endpoints))
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE:
                raise
        return bool(made)

    await eventually(is_bound, what="the endpoints are free again")
    return made[0]


class KvPublisher:
    """Binds to free ports of the loopback; or, with `connect_to`, its PUB socket connects.

    `with_topic` says whether replay answers carry the topic (from vLLM 0.26 on). `sends_marker` and
    `answers_replay` are faults.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        *,
        endpoint: str = "tcp://127.0.0.1:*",
        replay_endpoint: str = "tcp://127.0.0.1:*",
        connect_to: str | None = None,
        with_topic: bool = True,
        sends_marker: bool = True,
        answers_replay: bool = True,
    ) -> None:
        self.sent: list[bytes] = []
        self.replays_asked: list[int] = []
        self._with_topic = with_topic
        self._sends_marker = sends_marker
        self._answers_replay = answers_replay
        self._pub = context.socket(zmq.PUB)
        self._pub.sndhwm = 0
        self._router = context.socket(zmq.ROUTER)
        self._router.sndhwm = 0
        try:
            if connect_to is None:
                self._pub.bind(endpoint)
            else:
                self._pub.connect(connect_to)
            self._router.bind(replay_endpoint)
        except zmq.ZMQError:
            self._pub.close()
            self._router.close()
            raise
        self.endpoint = self._pub.getsockopt_string(zmq.LAST_ENDPOINT)
        self.replay_endpoint = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._router.getsockopt(zmq.FD), self._serve_replay)

    def publish(self, payload: bytes, *, is_lost: bool = False) -> None:
        """Send the next message; a lost one is in the replay buffer alone."""
        if not is_lost:
            self._pub.send_multipart([b"kv-events", number(len(self.sent)), payload])
        self.sent.append(payload)

    def send_raw(self, *frames: bytes) -> None:
        """Send frames as they are."""
        self._pub.send_multipart(list(frames))

    def close(self) -> None:
        self._loop.remove_reader(self._router.getsockopt(zmq.FD))
        self._pub.close(linger=0)
        self._router.close(linger=0)

    def _serve_replay(self) -> None:
        while self._router.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            peer, empty, start = self._router.recv_multipart()
            assert empty == b"", "engines drop a request without the empty frame"
            self.replays_asked.append(int.from_bytes(start, "big"))
            if self._answers_replay:
                self._answer(peer, self.replays_asked[-1])

    def _answer(self, peer: bytes, start: int) -> None:
        topic = [b"kv-events"] if self._with_topic else []
        for sequence in range(start, len(self.sent)):
            self._router.send_multipart([peer, b"", *topic, number(sequence), self.sent[sequence]])
        if self._sends_marker:
            self._router.send_multipart([peer, b"", *topic[:0], *([b""] if topic else []), END_MARKER, b""])
