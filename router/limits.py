"""Bounds of the relay, each with its reason. Those that operators may want to change are settings."""

from __future__ import annotations

from dataclasses import dataclass

from router.config import Settings

WRITE_BUFFER_LOW = 16 * 1024
WRITE_BUFFER_HIGH = 64 * 1024
"""Bytes waiting for a slow peer before its source is paused, and until it goes on. Set by hand, since
uvloop's low-water mark is 16 bytes, which makes a pause of every chunk. The kernel's buffers come on top."""

JOINED_BYTES_MAX = 64 * 1024
"""Head and body up to here are copied into one write: each goes out at once, and a system call costs more
than the copy."""

HEADER_LINE_BYTES = 4
"""What a header line has besides its name and value: the colon, a blank, CR and LF."""

SHUT_DOWN_SECONDS = 1.0
"""For telling the clients of streams that outlived the drain that theirs end here; slow ones are cut."""

RESPONSE_HEAD_BYTES_MAX = 64 * 1024
"""Head of a worker's answer; engines send some 200 bytes."""

LEG_ANSWER_BYTES_MAX = 16 << 20
"""Answer of a prefill leg: one token, and the numbers of up to a million blocks."""

HAND_OVER_WARNINGS_MAX = 1000
"""Things that were said of prefill workers, each once."""

USAGE_BODY_BYTES_MAX = 1 << 20
"""Largest answer that is read for its usage; what is larger and not streamed holds log probabilities."""

HOST_NAME_SECONDS = 5.0
"""How long the addresses of a worker's host name are used before it is looked up anew; when none of them
answers, at once. Name servers of clusters give 5 to 30 s."""

NEXT_ADDRESS_SECONDS = 0.25
"""How long one address of a name may be silent before the next is tried beside it: RFC 8305's own choice."""

STORED_RESPONSES_MAX = 100_000
"""Responses whose worker is remembered; about 150 bytes each. The oldest are forgotten first."""

RESPONSE_ID_SEARCH_BYTES = 4096
"""A stored response names itself at its very start."""

DESCRIPTORS_SPARE = 500
"""Descriptors kept for listening, probes, events, admin and connections about to be refused."""

SURPLUS_CONNECTIONS_MAX = 100
"""Connections beyond the limit that may stay until their one request is answered: a fifth of those spared."""

GATEWAYS_IN_A_ROW = 8
"""Gateways that a request may have passed: sites have one in front of each cluster and one inside; more are a
loop through gateways that strip each other's marks."""

LISTEN_BACKLOG = 4096
"""Connections that the kernel accepts before we do: a burst of clients after a deployment."""

ACCEPTS_AT_ONCE = 64
"""TLS connections taken in before the loop turns to other work: 2 ms."""

NO_DESCRIPTORS_SECONDS = 1.0
"""How long none is accepted after the system had no descriptor left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayLimits:
    """Seconds and bytes; the defaults are what runs in production."""

    connect_seconds: float = 5.0
    first_byte_seconds: float = 600.0
    idle_seconds: float = 120.0
    request_seconds: float = 1800.0
    client_write_seconds: float = 60.0
    body_bytes: int = 64 << 20

    head_bytes: int = 64 << 10
    """Request line and headers; the largest that nginx takes with its usual settings is 32 KiB."""
    url_bytes: int = 8 << 10
    head_seconds: float = 10.0
    body_silence_seconds: float = 60.0
    keep_alive_seconds: float = 75.0
    """An idle client connection, as nginx."""
    linger_seconds: float = 5.0
    """After refusing a request half sent: time to read on, so that the refusal is not lost to a reset. After
    one side of a tunnel has ended: how long the other may be silent, since most that end are gone. In a
    drain: how long an idle client may owe TLS its farewell."""
    pipelined_bytes: int = 64 << 10
    collected_bytes: int = 2 << 30
    """Bodies held by the whole process: 32 of the largest, or 60,000 prompts of 8,192 tokens."""
    worker_idle_seconds: float = 4.0
    """uvicorn closes idle connections after 5 s; below that a reused one is seldom stale."""

    @property
    def check_seconds(self) -> float:
        """How often deadlines are looked at: fine enough for the shortest, at most once a second."""
        shortest = min(
            self.connect_seconds,
            self.first_byte_seconds,
            self.idle_seconds,
            self.request_seconds,
            self.client_write_seconds,
            self.head_seconds,
            self.body_silence_seconds,
            self.keep_alive_seconds,
            self.linger_seconds,
            self.worker_idle_seconds,
        )
        return min(1.0, shortest / 4)

    @classmethod
    def from_settings(cls, settings: Settings) -> RelayLimits:
        return cls(
            connect_seconds=settings.connect_timeout,
            first_byte_seconds=settings.first_byte_timeout,
            idle_seconds=settings.idle_timeout,
            request_seconds=settings.request_timeout,
            client_write_seconds=settings.client_write_timeout,
            body_bytes=settings.max_body,
        )
