"""vLLM's NixlConnector: the prefill leg's answer says where the KV lies, and the decode leg repeats it.

Seen with vLLM 0.32; the keys of other releases are from their sources, 0.9.2 to 0.33. Parameters are passed
on as they came: releases add to them.
"""

from __future__ import annotations

import msgspec

from policies.types import Worker
from router.hand_over.base import HandOver, IncompleteAnswer, Leg
from router.hand_over.one_token import one_token_body
from router.wire.splice import with_members

_ASK = (
    b'{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,'
    b'"remote_block_ids":null,"remote_host":null,"remote_port":null}'
)

_REQUIRED = ("remote_engine_id", "remote_host", "remote_port", "tp_size")
_NAMES_REQUEST_FROM = (0, 14)
"""From 0.14 on the answer names the prefill's request; before, both legs have the same `x-request-id`."""


class _Answer(msgspec.Struct):
    kv_transfer_params: msgspec.Raw = msgspec.Raw(b"null")


class Nixl:
    """See HandOverProtocol."""

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
    """As they stand there. A decode engine without `remote_host` hangs, and dies when its client leaves."""
    try:
        raw = msgspec.json.decode(answer, type=_Answer).kv_transfer_params
        values = msgspec.json.decode(raw, type=dict[str, object] | None)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise IncompleteAnswer(f"its answer is not understood: {error}") from None
    if not values:
        raise IncompleteAnswer("its answer has no kv_transfer_params: is it started with a KV connector?")
    if missing := [name for name in _required(values, prefill) if values.get(name) is None]:
        raise IncompleteAnswer(f"its kv_transfer_params lack {', '.join(missing)}")
    if values.get("do_remote_prefill") is not True:
        raise IncompleteAnswer("its kv_transfer_params do not offer a prefill (do_remote_prefill)")
    return bytes(raw)


def _required(values: dict[str, object], prefill: Worker) -> list[str]:
    names = list(_REQUIRED)
    if _release(prefill.version) >= _NAMES_REQUEST_FROM:
        names.append("remote_request_id")
    if (
        values.get("transfer_mode") != "push"
    ):  # there the prefill worker writes, to blocks of the other's choice
        names.append("remote_block_ids")
    return names


def _release(version: str) -> tuple[int, ...]:
    """Its first two numbers; a version that is not told is a new one."""
    numbers = version.removeprefix("v").split(".")[:2]
    return tuple(map(int, numbers)) if all(map(str.isdecimal, numbers)) else (1, 0)
