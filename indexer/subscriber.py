"""The sockets of one worker's event publisher: live messages, replay, connection state. I/O and nothing else.

What a message means is the feed's matter; here frames are read and handed on. Sockets are drained from the
event loop's reader callback, without tasks: 12 us a message where a task per message costs 46. A drain that
takes too long goes on after others had their turn.

ZMQ's file descriptor reports only that something changed, so every drain goes on until the socket says that
there is no more, and a socket that was just written to is drained once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import zmq
from zmq.utils.monitor import parse_monitor_message

from indexer.limits import (
    DRAIN_SECONDS,
    HEARTBEAT_SECONDS,
    RECEIVE_QUEUE_MESSAGES,
    RECONNECT_SECONDS_MAX,
    REPLAY_SILENCE_SECONDS,
)

BIND_PREFIX = "bind:"
"""Before an endpoint: the engine's publisher connects, so we bind."""

SEQUENCE_BYTES = 8
END_MARKER = b"\xff" * SEQUENCE_BYTES

_HANDSHAKE_FAILURES = (
    zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
    | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
    | zmq.Event.HANDSHAKE_FAILED_AUTH
)
_MONITORED = zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED | _HANDSHAKE_FAILURES

Frames = list[bytes]


class SubscriberSink(Protocol):
    """Who hears what the sockets bring. Called from the event loop, never after `stop`."""

    def on_message(self, sequence: int, payload: bytes) -> None: ...

    def on_replay_message(self, sequence: int, payload: bytes) -> None: ...

    def on_replay_end(self) -> None: ...

    def on_replay_failed(self, reason: str) -> None: ...

    def on_connected(self) -> None: ...

    def on_disconnected(self) -> None: ...

    def on_malformed(self, reason: str) -> None: ...


class KvSubscriber:
    """Follows one publisher: vLLM's and SGLang's three frames of topic, sequence number and payload."""

    def __init__(
        self,
        endpoint: str,
        replay_endpoint: str | None,
        sink: SubscriberSink,
        *,
        context: zmq.Context[zmq.Socket[bytes]],
        topic: str = "",
        replay_silence_seconds: float = REPLAY_SILENCE_SECONDS,
    ) -> None:
        """`endpoint` is where the engine publishes, or `bind:` and where its publisher will connect."""
        self._endpoint = endpoint
        self._replay_endpoint = replay_endpoint
        self._sink = sink
        self._context = context
        self._topic = topic
        self._replay_silence_seconds = replay_silence_seconds
        self._connections = _ConnectionCount(sink)
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: _SocketDrain | None = None
        self._messages: _SocketDrain | None = None
        self._replay: _Replay | None = None

    def start(self) -> None:
        """Open the event socket. Raises zmq.ZMQError for an endpoint that is none or that can't be bound."""
        self._socket = socket = self._context.socket(zmq.SUB)
        try:
            _set_options(socket, self._topic)
            self._monitor = _SocketDrain(socket.get_monitor_socket(_MONITORED), self._connections.note)
            if self._endpoint.startswith(BIND_PREFIX):
                socket.bind(self._endpoint.removeprefix(BIND_PREFIX))
            else:
                socket.connect(self._endpoint)
        except zmq.ZMQError:
            self.stop()
            raise
        # A connection is reported before the messages that came over it.
        self._messages = _SocketDrain(socket, self._on_frames, before=self._monitor.drain)

    def stop(self) -> None:
        """Close every socket; no sink method is called any more. May be called from a sink method, and
        twice."""
        self._end_replay()
        if self._socket is not None:
            self._socket.disable_monitor()
        for drain in (self._messages, self._monitor):
            if drain is not None:
                drain.close()
        if self._socket is not None:
            self._socket.close(linger=0)
        self._socket = self._monitor = self._messages = None

    def request_replay(self, from_sequence: int) -> None:
        """Ask for the messages from a number on. A replay that still runs is ended: nothing more comes of
        it."""
        self._end_replay()
        if self._replay_endpoint is None:
            raise ValueError(f"no replay endpoint is known for {self._endpoint}")
        self._replay = _Replay(
            self._context, self._replay_endpoint, from_sequence, self._sink, self._replay_silence_seconds
        )

    def _end_replay(self) -> None:
        if self._replay is not None:
            self._replay.close()
            self._replay = None

    def _on_frames(self, frames: Frames) -> None:
        if len(frames) != 3:
            self._sink.on_malformed("frame_count")
        elif len(frames[1]) != SEQUENCE_BYTES:
            self._sink.on_malformed("sequence_frame")
        else:
            self._sink.on_message(int.from_bytes(frames[1], "big"), frames[2])


class _Replay:
    """One question to the replay socket and its answer, over a socket of its own: answers never mix."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        from_sequence: int,
        sink: SubscriberSink,
        silence_seconds: float,
    ) -> None:
        self._sink = sink
        self._silence_seconds = silence_seconds
        self._loop = asyncio.get_running_loop()
        socket = context.socket(zmq.DEALER)
        socket.rcvhwm = 0  # the engine drops what does not fit, the end marker too
        socket.linger = 0
        socket.ipv6 = True
        self._drain = _SocketDrain(socket, self._on_frames)
        self._heard_at = self._loop.time()
        self._timer = self._loop.call_later(silence_seconds, self._check_silence)
        try:
            socket.connect(endpoint)
            socket.send_multipart([b"", from_sequence.to_bytes(SEQUENCE_BYTES, "big")], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            reason = f"replay socket: {error}"
            self._loop.call_soon(self._fail, reason)  # not from within the caller's step

    def close(self) -> None:
        self._timer.cancel()
        self._drain.close()

    def _on_frames(self, frames: Frames) -> None:
        """`[empty, topic?, sequence, payload]`; a topic is there from vLLM 0.26 on, so count from the end."""
        self._heard_at = self._loop.time()
        if len(frames) < 3 or len(frames[-2]) != SEQUENCE_BYTES:
            self._sink.on_malformed("replay_frames")
        elif frames[-2] == END_MARKER:
            self.close()
            self._sink.on_replay_end()
        else:
            self._sink.on_replay_message(int.from_bytes(frames[-2], "big"), frames[-1])

    def _check_silence(self) -> None:
        silent_until = self._heard_at + self._silence_seconds
        if self._loop.time() < silent_until:
            self._timer = self._loop.call_at(silent_until, self._check_silence)
        else:
            self._fail(f"nothing came for {self._silence_seconds:g} s")

    def _fail(self, reason: str) -> None:
        if not self._drain.is_closed:
            self.close()
            self._sink.on_replay_failed(reason)


class _ConnectionCount:
    """Turns the monitor's events into connected and disconnected.

    Several peers may connect to a socket that is bound, and a restarted engine's connection may come before
    the old one's end: disconnected is when none is left. Peers that never spoke ZMQ end with a disconnect
    too.
    """

    def __init__(self, sink: SubscriberSink) -> None:
        self._sink = sink
        self._num_connections = 0
        self._num_failed = 0

    def note(self, frames: Frames) -> None:
        event = parse_monitor_message(frames)["event"]
        if event == zmq.Event.HANDSHAKE_SUCCEEDED:
            self._num_connections += 1
            self._sink.on_connected()
        elif event & _HANDSHAKE_FAILURES:
            self._num_failed += 1
        elif self._num_failed:
            self._num_failed -= 1
        elif self._num_connections:
            self._num_connections -= 1
            if not self._num_connections:
                self._sink.on_disconnected()


class _SocketDrain:
    """Reads a socket to its end whenever the event loop says that something changed, in slices of time."""

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        on_frames: Callable[[Frames], None],
        *,
        before: Callable[[], None] | None = None,
    ) -> None:
        self.is_closed = False
        self._socket = socket
        self._on_frames = on_frames
        self._before = before
        self._loop = asyncio.get_running_loop()
        self._fd = int(socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._fd, self.drain)
        self._next = self._loop.call_soon(self.drain)  # what happens until then is not reported again

    def drain(self) -> None:
        """Hand on what is there; go on later when that takes too long."""
        if self._before is not None:
            self._before()
        ends_at = self._loop.time() + DRAIN_SECONDS
        while not self.is_closed:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._on_frames(frames)
            if self._loop.time() >= ends_at:
                self._next.cancel()
                self._next = self._loop.call_soon(self.drain)
                return

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._next.cancel()
            self._loop.remove_reader(self._fd)
            self._socket.close(linger=0)


def _set_options(socket: zmq.Socket[bytes], topic: str) -> None:
    socket.rcvhwm = RECEIVE_QUEUE_MESSAGES
    socket.linger = 0
    socket.ipv6 = True
    socket.reconnect_ivl_max = int(RECONNECT_SECONDS_MAX * 1000)
    socket.heartbeat_ivl = int(HEARTBEAT_SECONDS * 1000)
    socket.heartbeat_timeout = int(HEARTBEAT_SECONDS * 3000)
    socket.setsockopt_string(zmq.SUBSCRIBE, topic)
