"""Which requests are not split between two workers, and what clients may not say where requests are split."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from router.errors import BadRequest
from router.wire.endpoints import Endpoint, EndpointKind, Protocol
from router.wire.http1 import RequestHead

Members = Mapping[str, msgspec.Raw]

GATEWAY_FIELDS = (
    "kv_transfer_params",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "disagg_prefill_dp_rank",
)
"""Members that join two legs: only who has chosen both workers can know them."""

_GATEWAY_HEADERS = re.compile(rb"^x-override-[a-z-]*(?=:)", re.IGNORECASE | re.MULTILINE)
_ADDRESSES = re.compile(rb"___(prefill|decode)_addr_")

_SPLIT = {Protocol.CHAT, Protocol.COMPLETIONS}
_SPLIT_BY_SGLANG = _SPLIT | {Protocol.GENERATE}


def refuse_gateway_fields(body: bytes, members: Members | None, head: RequestHead) -> None:
    """Raises BadRequest that names what a client may not send. A body that could not be read is searched:
    what looks like such a member is refused, wherever it stands."""
    if members is not None:
        found = [name for name in GATEWAY_FIELDS if name in members]
    else:
        found = [name for name in GATEWAY_FIELDS if b'"%b"' % name.encode() in body]
    if found:
        raise BadRequest(
            f"'{found[0]}' is set by this gateway alone, which chooses both workers: leave it out",
            param=found[0],
            code="gateway_field",
        )
    if header := _GATEWAY_HEADERS.search(head.forward):
        name = header.group().decode("latin-1").lower()
        raise BadRequest(
            f"The header '{name}' is set by this gateway alone: leave it out",
            param=name,
            code="gateway_field",
        )
    if _ADDRESSES.search(head.request_id):
        raise BadRequest(
            "'x-request-id' names addresses of KV connectors: choose another",
            param="x-request-id",
            code="gateway_field",
        )


def why_whole(
    members: Members | None, endpoint: Endpoint, protocols: Iterable[str], takes_batches: bool
) -> str:
    """Why one worker has to do all of this request; "" when two may share it. `protocols`: by which the fleet
    hands over. `takes_batches`: all of these do so with several prompts at once."""
    split = _SPLIT_BY_SGLANG if set(protocols) == {"sglang"} else _SPLIT
    if endpoint.kind is not EndpointKind.INFERENCE or endpoint.protocol not in split:
        return f"{endpoint.path} is not handed over"
    if members is None:
        return "its body is read by lenient readers only"
    if not takes_batches and num_prompts(members, endpoint) is not None:
        return "it has several prompts, and answers tell of one"
    if found := [name for name, is_set in _NEEDS_THE_PROMPT.items() if is_set(members.get(name, _NULL))]:
        return f"'{found[0]}' needs the prompt to be computed where the answer comes from"
    return ""


def num_prompts(members: Members, endpoint: Endpoint) -> int | None:
    """Of a request with a list of prompts; None where it has one that is no list."""
    for name in _PROMPTS.get(endpoint.protocol, ()):
        if (raw := members.get(name)) is not None and bytes(raw[:1]) == b"[":
            items = msgspec.json.decode(raw, type=list[msgspec.Raw])
            if items and bytes(items[0][:1]) in (b'"', b"["):
                return len(items)
    return None


_PROMPTS = {Protocol.COMPLETIONS: ("prompt",), Protocol.GENERATE: ("text", "input_ids")}

_NULL = msgspec.Raw(b"null")


def _is_given(raw: msgspec.Raw) -> bool:
    return bytes(raw) not in (b"null", b"false")


def _is_above_one(raw: msgspec.Raw) -> bool:
    return bytes(raw) not in (b"null", b"1", b"0")


_NEEDS_THE_PROMPT = {
    "prompt_logprobs": _is_given,
    "echo": _is_given,
    "prompt_embeds": _is_given,
    "use_beam_search": _is_given,
    "best_of": _is_above_one,
}
"""Log probabilities of the prompt come from computing it; beams begin with more than one token of it."""
