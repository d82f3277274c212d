"""What an adapter may raise."""

from __future__ import annotations


class MalformedFrame(ValueError):
    """The payload is no batch of events in any known layout; the message says what is wrong."""
