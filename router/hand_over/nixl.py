"""vLLM's NixlConnector: the prefill leg's answer says where the KV lies, and the decode leg repeats it.

Seen with vLLM 0.32; the keys of other releases are from their sources, 0.9.2 to 0.33. Parameters are passed
on as they came: releases add to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec

from policies.types import Worker
from router.hand_over.base import HandOver, IncompleteAnswer, Leg
from router.hand_over.one_token import one_token_body
from router.wire.splice import with_members

_ASK = (
    b'{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,'
    b'"remote_block_ids":null,"remote_host":null,"remote_port":null}'
)

_NAMES_REQUEST_FROM = (0, 14)
"""From 0.14 on the answer names the prefill's request; before, both legs have the same `x-request-id`."""


class _Answer(msgspec.Struct):
    kv_transfer_params: msgspec.Raw = msgspec.Raw(b"null")


class Nixl:
    """See HandOverProtocol. No batches: of several answers to one prompt each would fetch its KV, which is
    released when the first one has."""

    is_concurrent = False
    asks_engine_id = False
    takes_batches = False

    def prefill_leg(self, hand_over: HandOver) -> Leg:
        body = one_token_body(
            hand_over.body, hand_over.members, hand_over.endpoint, {"kv_transfer_params": _ASK}
        )
        return Leg(body, hand_over.request_id)

    def decode_leg(self, hand_over: HandOver, answer: bytes) -> Leg:
        parameters = _parameters_in(answer, hand_over.prefill)
        body = with_members(hand_over.body, {"kv_transfer_params": parameters})
        return Leg(body, hand_over.request_id)


def _parameters_in(answer: bytes, prefill: Worker) -> bytes:
    """As they stand there. A decode engine without `remote_host` hangs, and dies when its client leaves;
    without blocks an assertion ends it."""
    try:
        raw = msgspec.json.decode(answer, type=_Answer).kv_transfer_params
        values = msgspec.json.decode(raw, type=dict[str, object] | None)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise IncompleteAnswer(f"its answer is not understood: {error}") from None
    if not values:
        raise IncompleteAnswer("its answer has no kv_transfer_params: is it started with a KV connector?")
    if wrong := [name for name in _required(values, prefill) if not _IS_SOUND[name](values.get(name))]:
        raise IncompleteAnswer(f"its kv_transfer_params lack {', '.join(wrong)}, or hold what cannot be used")
    return bytes(raw)


def _required(values: Mapping[str, object], prefill: Worker) -> Iterator[str]:
    yield from ("do_remote_prefill", "remote_engine_id", "remote_host", "remote_port", "tp_size")
    if _release(prefill.version) >= _NAMES_REQUEST_FROM:
        yield "remote_request_id"
    if values.get("transfer_mode") != "push":  # there the prefill worker writes where the other one wants it
        yield "remote_block_ids"


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _is_count(value: object) -> bool:
    return type(value) is int and value > 0


def _are_blocks(value: object) -> bool:
    """Numbers, in lists for each KV-cache group since 0.12 or so; some groups may need none."""
    if not isinstance(value, list):
        return False
    groups = value if any(isinstance(item, list) for item in value) else [value]
    if not all(isinstance(group, list) and all(type(item) is int for item in group) for group in groups):
        return False
    return any(groups)


_IS_SOUND: Mapping[str, Callable[[object], bool]] = {
    "do_remote_prefill": lambda value: value is True,
    "remote_engine_id": _is_text,
    "remote_request_id": _is_text,
    "remote_host": _is_text,
    "remote_port": _is_count,
    "tp_size": _is_count,
    "remote_block_ids": _are_blocks,
}


def _release(version: str) -> tuple[int, ...]:
    """Its first two numbers; a version that is not told is a new one."""
    numbers = version.removeprefix("v").split(".")[:2]
    return tuple(map(int, numbers)) if all(map(str.isdecimal, numbers)) else (1, 0)
