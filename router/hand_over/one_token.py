"""What all of vLLM's connectors have in common: the prefill leg is the client's request, asked for one token.

Everything that shapes the prompt stays as it is, byte for byte. As read in vLLM 0.32.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from router.wire.endpoints import Endpoint, Protocol
from router.wire.splice import with_members

_ALWAYS = {
    "max_tokens": b"1",
    "stream": b"false",  # a streamed answer carries no parameters
    # The one token must end by its length: what an end of the text or a stop ends has its blocks released.
    "ignore_eos": b"true",
}

_IF_PRESENT = {
    "stream_options": b"null",
    "min_tokens": b"0",
    "n": b"1",
    "stop": b"null",
    "stop_token_ids": b"null",
    "logprobs": b"null",
    "logprob_token_ids": b"null",  # refused without logprobs
}
"""What would be refused, or cost, with one token that nobody reads."""

_IF_PRESENT_IN_CHATS = {"max_completion_tokens": b"1", "top_logprobs": b"null"}


def one_token_body(
    body: bytes, members: Mapping[str, msgspec.Raw], endpoint: Endpoint, more: Mapping[str, bytes]
) -> bytes:
    """The client's body with these members changed, and `more` added."""
    if_present = _IF_PRESENT | (_IF_PRESENT_IN_CHATS if endpoint.protocol is Protocol.CHAT else {})
    changed = {name: value for name, value in if_present.items() if name in members}
    return with_members(body, {**_ALWAYS, **changed, **more})
