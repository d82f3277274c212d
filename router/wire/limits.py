"""Bounds of the wire parsers, each with its reason."""

SSE_EVENT_BYTES_MAX = 1 << 20
"""One event held until it is whole. Token events have some 300 bytes; the closing event of a `responses`
stream repeats the whole answer. Beyond this the event is counted unread."""
