"""vLLM's P2pNcclConnector: the request id spells both KV addresses, and nothing else joins the legs.

From the sources of vLLM 0.9.2 to 0.22.1, the releases that have it; not run.
"""

from __future__ import annotations

from policies.types import Worker
from router.hand_over.base import HandOver, Leg, transfer_host
from router.hand_over.one_token import one_token_body


class P2p:
    """See HandOverProtocol."""

    is_concurrent = False
    asks_engine_id = False
    takes_batches = False

    def prefill_leg(self, hand_over: HandOver) -> Leg:
        body = one_token_body(hand_over.body, hand_over.members, hand_over.endpoint, {})
        return Leg(body, _request_id(hand_over))

    def decode_leg(self, hand_over: HandOver, answer: bytes) -> Leg:
        return Leg(hand_over.body, _request_id(hand_over))


def _request_id(hand_over: HandOver) -> bytes:
    """Engines find the addresses by their three underscores; what the client called it stands behind."""
    prefill, decode = _kv_address(hand_over.prefill), _kv_address(hand_over.decode)
    return b"___prefill_addr_%b___decode_addr_%b_%b" % (
        prefill,
        decode,
        hand_over.request_id.replace(b"___", b"-"),
    )


def _kv_address(worker: Worker) -> bytes:
    assert worker.transfer is not None
    return f"{transfer_host(worker)}:{worker.transfer.port}".encode()
