"""A scanner over the bytes of a server-sent event stream, whatever their chunking.

It sees the first generated token, counts data lines, knows whether the bytes so far end between two events,
and keeps the one line that carries `usage`. It never parses JSON and changes nothing: the bytes are relayed
by others. Per chunk of whole events it costs a few substring searches in C and no loop.

The one event that the gateway itself may add, the error that ends a broken stream, stands here too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import orjson

from router.errors import RouterError
from router.wire.endpoints import Protocol
from router.wire.limits import SSE_EVENT_BYTES_MAX

_DELTA_EVENT = re.compile(rb'(?:^|[\r\n])(?:event: ?[\w.]*delta|data:[^\r\n]*"type": ?"[\w.]*delta")')
"""Deltas of the responses protocol (`response.output_text.delta`) and of messages (`content_block_delta`).
In the text of a model the quotes would be escaped."""

_DONE = re.compile(rb"(?:^|[\r\n])data: ?\[DONE\][\r\n]*\Z")

_TAIL_BYTES = 32
"""As much of the last events is kept as holds `data: [DONE]` and the ends of its lines."""

_NULL_USAGE = re.compile(rb'"usage"\s*:\s*null')


class SseScanner:
    """`delta_events`: the first token is the first delta event (responses, messages), not the first data line
    (chat, completions)."""

    __slots__ = (
        "_delta_events",
        "_is_oversize",
        "_last",
        "_partial",
        "first_token_seen",
        "num_events",
        "usage_line",
    )

    def __init__(self, *, delta_events: bool) -> None:
        self._delta_events = delta_events
        self._partial = bytearray()
        self._is_oversize = False
        self._last = b""
        self.first_token_seen = False
        self.num_events = 0
        """Data lines seen in whole events."""
        self.usage_line = b""
        """The last data line with a usage object: what follows `data:`."""

    @property
    def at_event_boundary(self) -> bool:
        """Whether another event may be put here."""
        return not self._partial

    @property
    def said_done(self) -> bool:
        """Whether the last event so far was `[DONE]`: the stream is whole, whatever becomes of the worker."""
        return not self._partial and _DONE.search(self._last) is not None

    def feed(self, data: bytes) -> int:
        """Take the next body bytes; returns how many data lines became whole with them."""
        if self._partial or not data.endswith(b"\n\n"):
            data = self._whole_events(data)
            if not data:
                return 0
        num_events = data.count(b"\ndata:") + data.startswith(b"data:")
        if num_events:
            self.num_events += num_events
            self._last = data[-_TAIL_BYTES:]
            if b'"usage"' in data:
                self._keep_usage(data)
        if not self.first_token_seen:
            self.first_token_seen = bool(_DELTA_EVENT.search(data) if self._delta_events else num_events)
        return num_events

    def feed_chunk(self, chunk: bytes) -> int:
        """As `feed`, for a whole chunk of whole events after the first token, framing included. Its size
        stands on a line of its own, so the first data line too follows a line's end."""
        num_events = chunk.count(b"\ndata:")
        if num_events:
            self.num_events += num_events
            self._last = chunk  # whole, and held by the connection too: a slice would cost more
            if b'"usage"' in chunk:
                self._keep_usage(chunk)
        return num_events

    def _keep_usage(self, events: bytes) -> None:
        """The last line with a usage that is not null. Few events have one, so a loop is affordable."""
        for line in reversed(events.splitlines()):
            if line.startswith(b"data:") and b'"usage"' in line and not _NULL_USAGE.search(line):
                self.usage_line = line[len(b"data:") :]
                return

    def _whole_events(self, data: bytes) -> bytes:
        """Join `data` to the event that is not whole yet; returns the events that are, keeps the rest."""
        partial = self._partial
        searched = max(0, len(partial) - 2)
        partial += data
        end = _last_boundary(partial, searched)
        events = bytes(partial[:end])
        del partial[:end]
        if self._is_oversize and end:
            self._is_oversize = False
            events = b"data:" + events
        if len(partial) > SSE_EVENT_BYTES_MAX:
            self._is_oversize = True
            del partial[:-3]
        return events


def _last_boundary(data: bytearray, start: int) -> int:
    """Where the last blank line from `start` on ends; 0 without one. Lines end in LF, CRLF or CR."""
    lf = data.rfind(b"\n\n", start)
    crlf = data.rfind(b"\n\r\n", start)
    cr = data.rfind(b"\r\r", start)
    return max(lf + 2 if lf >= 0 else 0, crlf + 3 if crlf >= 0 else 0, cr + 2 if cr >= 0 else 0)


def error_event(protocol: Protocol, error: RouterError, num_events: int) -> bytes:
    """The last event of a stream that cannot go on, as clients of `protocol` know it. `num_events` came
    before it."""
    return ERROR_EVENTS[protocol](error, num_events)


def _object(error: RouterError, num_events: int) -> bytes:
    return b"data: %b\n\n" % error.body()


def _object_and_done(error: RouterError, num_events: int) -> bytes:
    return _object(error, num_events) + b"data: [DONE]\n\n"


def _responses_event(error: RouterError, num_events: int) -> bytes:
    """The API's documented event; OpenAI's own clients raise only for the object `error`, which their service
    sends too. Events are numbered from 0, so that this one's number is how many there were."""
    fields = error.fields()
    event = {
        "type": "error",
        "code": fields["code"],
        "message": fields["message"],
        "param": fields["param"],
        "sequence_number": num_events,
        "error": fields,
    }
    return b"event: error\ndata: %b\n\n" % orjson.dumps(event)


def _messages_event(error: RouterError, num_events: int) -> bytes:
    event = {"type": "error", "error": {"type": "api_error", "message": error.fields()["message"]}}
    return b"event: error\ndata: %b\n\n" % orjson.dumps(event)


ERROR_EVENTS: Mapping[Protocol, Callable[[RouterError, int], bytes]] = {
    Protocol.CHAT: _object_and_done,
    Protocol.COMPLETIONS: _object_and_done,
    Protocol.GENERATE: _object_and_done,
    Protocol.RESPONSES: _responses_event,
    Protocol.MESSAGES: _messages_event,
    Protocol.OTHER: _object,
}
"""How a broken stream ends, by protocol: with OpenAI's error object (SGLang's `/generate` among them), with
an `error` event of the Responses API, or with one of Anthropic's."""
