"""One canonical text for each conversation, whatever its client's JSON looks like.

A conversation's next turn begins with the bytes of the one before. It is comparable with itself only: no
engine sees this text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from xxhash import xxh3_128_digest

from router.wire.openai import Slices

_FIELDS_IN_ORDER = ("tools", "instructions", "system", "messages", "input")
"""Chat templates write tools and instructions before the conversation."""


def canonical_text(prompt: Slices) -> bytes:
    """All text of a chat-like body in the order in which templates write it. Media stand in by a digest."""
    pieces: list[bytes] = []
    for name in _FIELDS_IN_ORDER:
        if name not in prompt:
            continue
        try:
            pieces += list(_field_text(name, prompt[name]))
        except (msgspec.DecodeError, RecursionError):  # 1e999, or nested too deeply: as it stands
            pieces.append(bytes(prompt[name]))
    return b"".join(pieces)


def _field_text(name: str, raw: msgspec.Raw) -> Iterator[bytes]:
    if name == "tools":
        yield bytes(raw)
        return
    value = msgspec.json.decode(raw)
    if isinstance(value, str):
        yield name.encode() + b"\n" + value.encode() + b"\n"
        return
    for item in value if isinstance(value, list) else (value,):
        yield from _message_text(item)


def _message_text(message: Any) -> Iterator[bytes]:  # noqa: ANN401 - whatever the client sent
    if not isinstance(message, dict):
        yield _stable_json(message) + b"\n"
        return
    yield str(message.get("role", message.get("type", ""))).encode() + b"\n"
    yield from _content_text(message.get("content", message.get("text")))
    for name in _CARRIED_FIELDS:
        if message.get(name):
            yield name.encode() + b" " + _stable_json(message[name]) + b"\n"


_CARRIED_FIELDS = (
    "name", "tool_calls", "tool_call_id", "reasoning_content", "reasoning", "arguments", "output", "summary",
)  # fmt: skip
"""What a message holds besides its content that templates write."""


def _content_text(content: Any) -> Iterator[bytes]:  # noqa: ANN401 - whatever the client sent
    if content is None:
        return
    if isinstance(content, str):
        yield content.encode() + b"\n"
        return
    for part in content if isinstance(content, list) else (content,):
        text = part.get("text") if isinstance(part, dict) else None
        if isinstance(text, str):
            yield text.encode() + b"\n"
        else:  # an image or a recording: megabytes, perhaps
            yield xxh3_128_digest(_stable_json(part)) + b"\n"


def _stable_json(value: Any) -> bytes:  # noqa: ANN401 - whatever the client sent
    return msgspec.json.encode(value, order="deterministic")
