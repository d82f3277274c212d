"""vLLM's MooncakeConnector: an id of ours joins the legs, and the decode leg says where the prefill worker's
bootstrap server is, and which engine. From the sources of vLLM 0.32; not run.
"""

from __future__ import annotations

import msgspec

from router.hand_over.base import HandOver, IncompleteAnswer, Leg, transfer_host
from router.hand_over.one_token import one_token_body
from router.wire.splice import with_members

BOOTSTRAP_PORT = 8998
"""VLLM_MOONCAKE_BOOTSTRAP_PORT's default."""


class _Choice(msgspec.Struct):
    finish_reason: str | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice]


class Mooncake:
    """See HandOverProtocol. The legs could leave at once; one after the other, a prompt that is not computed
    is known before the decode worker waits for it."""

    is_concurrent = False
    asks_engine_id = True
    takes_batches = False

    def prefill_leg(self, hand_over: HandOver) -> Leg:
        parameters = {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "transfer_id": _transfer_id(hand_over),
        }
        more = {"kv_transfer_params": msgspec.json.encode(parameters)}
        body = one_token_body(hand_over.body, hand_over.members, hand_over.endpoint, more)
        return Leg(body, hand_over.request_id)

    def decode_leg(self, hand_over: HandOver, answer: bytes) -> Leg:
        if not hand_over.engine_id:
            raise IncompleteAnswer("its bootstrap server has named no engine")
        _check_end(answer)
        transfer = hand_over.prefill.transfer
        port = (transfer.port if transfer is not None else None) or BOOTSTRAP_PORT
        parameters = {
            "do_remote_decode": False,
            "do_remote_prefill": True,
            "transfer_id": _transfer_id(hand_over),
            "remote_bootstrap_addr": f"http://{transfer_host(hand_over.prefill)}:{port}",
            "remote_engine_id": hand_over.engine_id,
        }
        body = with_members(hand_over.body, {"kv_transfer_params": msgspec.json.encode(parameters)})
        return Leg(body, hand_over.request_id)


def _check_end(answer: bytes) -> None:
    """What ends by anything but its length has its blocks released, and the answer carries no other sign."""
    try:
        choices = msgspec.json.decode(answer, type=_Answer).choices
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise IncompleteAnswer(f"its answer is not understood: {error}") from None
    reasons = [choice.finish_reason for choice in choices]
    if reasons != ["length"]:
        raise IncompleteAnswer(f"its answer ended by {reasons}, not by its length: its blocks are released")


def _transfer_id(hand_over: HandOver) -> str:
    return f"xfer-{hand_over.request_id.decode('latin-1')}"
