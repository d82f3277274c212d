"""What clients may not say to a fleet that hands over: who says it has chosen both workers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec

from router.errors import BadRequest
from router.wire.http1 import RequestHead
from router.wire.limits import LENIENT_BYTES

GATEWAY_FIELDS = (
    "kv_transfer_params",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "bootstrap_pair_key",
    "disagg_prefill_dp_rank",
    "routed_dp_rank",
    "data_parallel_rank",
)
"""Members that join two legs, or name a rank, by which the legs of SGLang find each other."""

_HOLDERS = ("vllm_xargs", "sampling_params")
"""Members in which vLLM finds `kv_transfer_params` too: it puts those together with its own."""


def refuse_gateway_fields(body: bytes, members: Mapping[str, msgspec.Raw] | None, head: RequestHead) -> None:
    """Raises BadRequest that names what a client may not send. `members` of the body; None for one that could
    not be read: it is searched, and what looks like such a member is refused wherever it stands."""
    if name := next(_found(body, members), None):
        raise _refusal(f"'{name}'", name)
    if header := _HEADERS.search(head.forward):
        name = header.group().decode("latin-1").lower()
        raise _refusal(f"The header '{name}'", name)
    if _ADDRESSES.search(head.request_id):
        raise BadRequest(
            "'x-request-id' spells addresses of KV connectors: choose another",
            param="x-request-id",
            code="gateway_field",
        )


def _found(body: bytes, members: Mapping[str, msgspec.Raw] | None) -> Iterator[str]:
    if members is None:
        yield from _searched(body.replace(b"\0", b""))  # engines read UTF-16 and UTF-32 as well
        return
    for name in GATEWAY_FIELDS:
        if bytes(members.get(name, b"null")) != b"null":
            yield name
    for name in _HOLDERS:
        if name in members:
            yield from _searched(bytes(members[name]))


def _searched(text: bytes) -> Iterator[str]:
    """Raises BadRequest for a long text with escapes that might hide a name: no encoder escapes letters, and
    to look for names in all spellings takes up to 0.4 s for each MiB."""
    if len(text) <= LENIENT_BYTES:
        for match in _NAMES.finditer(text):
            yield GATEWAY_FIELDS[(match.lastindex or 1) - 1]
        return
    yield from (name for name in GATEWAY_FIELDS if b'"%b"' % name.encode() in text)
    if any(escape in text for escape in _ESCAPED_LETTERS):
        raise BadRequest(
            f"Letters may not be escaped (\\u0061) in more than {LENIENT_BYTES} bytes of unread JSON: "
            "write them as they are",
            code="gateway_field",
        )


def _refusal(what: str, param: str) -> BadRequest:
    return BadRequest(
        f"{what} is set by this gateway alone, which chooses both workers: leave it out",
        param=param,
        code="gateway_field",
    )


def _spelling(name: str) -> str:
    """Of a JSON string; any of its characters may be escaped."""
    return "".join(rf"(?:{char}|\\u00(?i:{ord(char):02x}))" for char in name)


_ESCAPED_LETTERS = (rb"\u006", rb"\u007", rb"\u005f", rb"\u005F")
"""What begins an escaped small letter or underscore."""
_NAMES = re.compile(
    '"(?=[bdkr\\\\])(?:{})"'.format("|".join(f"({_spelling(name)})" for name in GATEWAY_FIELDS)).encode()
)
_HEADERS = re.compile(rb"^x-override-[^:\r\n]*(?=:)", re.IGNORECASE | re.MULTILINE)
_ADDRESSES = re.compile(rb"___(prefill|decode)_addr_")
